"""Which values of a series are not as usual? A model of each key's series, in the state of the key.

Users write `stream.detect(...)`, or give `ms.anomalies.detector` to `pipeline.compute`.

    settings    what a detector is told: buckets, seasons, when a series is remarkable
    verdicts    what a model says of a bucket
    season      the long-term history: the day and the week, from fine to coarse
    rarity      how rare a value is by what its own series has shown
    counts      the model of counts: level times profile, evidence for spikes and dips
    gauge       the model of measured values: six ways to be rare
    detector    the computation around a model

Pure: value in, value out. It knows the core only.
"""

from millstream.anomalies.detector import CountDetector, Detector, GaugeDetector, detector
from millstream.anomalies.settings import COUNTS, GAUGE, SeriesRules

__all__ = ["COUNTS", "GAUGE", "CountDetector", "Detector", "GaugeDetector", "SeriesRules", "detector"]
