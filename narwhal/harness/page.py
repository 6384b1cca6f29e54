def of_run(measured, summary): return ""
