"""The four classes of problems, what a user states them with, and what is measured of them; nothing here solves one."""
