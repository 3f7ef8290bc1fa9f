"""The names of a history's columns: one list, so that no metric of a user's takes a name that has a meaning."""

COST_COLUMNS = ("lower_rounds", "upload_bytes", "download_bytes", "evaluations", "gradients", "lower_steps")
COLUMNS = ("round", *COST_COLUMNS, "seconds")
WIRE_COLUMNS = ("wire_upload_bytes", "wire_download_bytes", "failures")  # of engines that leave this process
PRIVACY_COLUMNS = ("epsilon",)  # of runs that promise privacy
PROBLEM_COLUMNS = ("loss", "loss_feasible", "feasibility", "violation", "test_loss")
LOWER_COLUMNS = ("lower_error", "adjoint_error")  # of methods and problems with a lower level
RULE_PREFIX = "certificate_"  # how a stopping rule's columns begin


def taken(name: str) -> bool:
    """Tell whether a column of this name is the history's own, or may become so: no metric of a user's may be called so."""
    own = (*COLUMNS, *WIRE_COLUMNS, *PRIVACY_COLUMNS, *PROBLEM_COLUMNS, *LOWER_COLUMNS)
    return name in own or name.startswith(RULE_PREFIX)
