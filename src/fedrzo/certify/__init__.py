"""What a point is worth: `fz.certify`, and `fz.certified` to stop a run by it."""

from fedrzo.certify.certificate import Certificate, LowerQuality
from fedrzo.certify.examine import certify
from fedrzo.certify.stopping import Certified, certified

__all__ = ["Certificate", "Certified", "LowerQuality", "certified", "certify"]
