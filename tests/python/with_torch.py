# SPDX-License-Identifier: Apache-2.0
"""For the tests with PyTorch, which import this first: it runs the script again if another Python has PyTorch."""
import frameworks

frameworks.run_with("torch")
