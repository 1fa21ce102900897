"""The environment of this process before it started a Ray: that of a command which is to run as from a shell.

A local Ray of :mod:`cluster.session` sets variables as long as it lives, by which another one would collect no metrics
and on_text of no announced end of a node.
"""

import os

SHELL = dict(os.environ)
