"""`disco demo`: real endpoints that race, fail, judge their answers, or divide them while the user watches."""
