"""What a point is worth: `fz.certify`, and `fz.certified` to stop a run by it."""

from fedrzo.certificates.certificate import Certificate, LowerQuality
from fedrzo.certificates.examine import certify
from fedrzo.certificates.stopping import Certified, certified

__all__ = ["Certificate", "Certified", "LowerQuality", "certified", "certify"]
