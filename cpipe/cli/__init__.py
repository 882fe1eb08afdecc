"""The command line: options, exit codes and where output goes; everything else is in the packages below."""

__all__: list[str] = []
