"""Grader definitions: the fields of a definition, `{{ item.x }}` templates, and formulas that combine several
graders."""
