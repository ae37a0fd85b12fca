"""What makes notebooks a course: their form, runner and gate; checkers, figures, widgets and the doctor."""
