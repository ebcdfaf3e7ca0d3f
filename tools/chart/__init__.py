"""Writes the Helm chart ``deploy/chart/hami`` from the kustomize manifests.

``variants`` renders the manifests with each combination of components that changes an object.
``settings`` puts values in the place of what users set.
``templates`` merges the variants of an object into one template with conditions.
``tests/cluster/test_chart.py`` compares what helm renders with what kustomize builds.
"""
