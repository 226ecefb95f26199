"""Every table and figure of the paper (Ma and Belkin 2019, arXiv:1806.06144), measured with Mercer."""
