from sglang_dspark.cli import main

main()
