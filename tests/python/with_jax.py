# SPDX-License-Identifier: Apache-2.0
"""For the tests with JAX, which import this first: it runs the script again if another Python has JAX."""
import frameworks

frameworks.run_with("jax")
