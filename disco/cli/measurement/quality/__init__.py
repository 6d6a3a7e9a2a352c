"""`disco measure quality`: how good an answer is that one model begins and another ends."""
