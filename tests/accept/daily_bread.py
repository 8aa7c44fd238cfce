"""Topic daily-bread: what first light built becomes something one would use every day and trust."""

from accept.fuzz import fuzzed

LINES = [fuzzed]
