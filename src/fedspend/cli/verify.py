HELP = "x"
DESCRIPTION = "x"
EXAMPLES = ""


def add_arguments(p):
    p.add_argument("plan")
