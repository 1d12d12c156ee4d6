"""Run a script of a DeMo checkout with SDTPS: python -m demo_sdtps train_net.py …"""

from demo_sdtps.plug_in.launch import main

if __name__ == "__main__":
    main()
