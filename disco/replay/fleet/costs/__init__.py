"""What an operation of a model costs on a piece of hardware: tables, stand-ins where they end, own measurements."""
