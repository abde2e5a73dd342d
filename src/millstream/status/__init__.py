"""What a person looks at: a status that is data, and views of it."""
