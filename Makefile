# Every target is `python3 dev.py <target>`; a machine without make can say that itself. Extra words: make test ARGS="-k lease"
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

help demo test test-all quick lint fmt bench requirements lock clean:
	@$(if $(PYTHON),$(PYTHON) dev.py $@ $(ARGS),echo "Leasehold needs Python 3.11 or newer: install one, or name it: make $@ PYTHON=/path/to/python3"; exit 1)

.PHONY: help demo test test-all quick lint fmt bench requirements lock clean
