"""python -m demo_sdtps.commands: the command demo-sdtps where its script is not on the path."""

from demo_sdtps.commands import main

main()
