"""How do records become results, in columns?"""
