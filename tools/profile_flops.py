from demo_sdtps.commands import run_command

if __name__ == "__main__":
    run_command("flops")
