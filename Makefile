# make demo: a chat in the browser. make test: the tests.
# They need only Python 3.11 or newer, and install everything else in .venv.

BIN := .venv/bin
LOCK := .ci/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST ?= -m pytest
PYTHONS := $(PYTHON) python3 python3.13 python3.12 python3.11

.PHONY: help demo test test-fast test-long test-programs ci-long test-django release-check upgrade-fixtures themes torture bench recall search-bench lint types js check docs site messages front-ends peers audit lock ci clean

help:
	@echo "make demo    run the demo on http://127.0.0.1:8000/; ARGS='--port 9000' another port"
	@echo "make test    run all tests but the long ones; ARGS='-k name' selects some"
	@echo "make test-fast run the tests that take up to 0.15 s of CPU each"
	@echo "make test-long run the tests that take several seconds each: kills, shutdowns, whole projects"
	@echo "make test-programs run the long tests of the programs that measure: bench, recall, peers"
	@echo "make test-django DJANGO=6.1 PYTHON=python3.13 run the fast tests with another Django"
	@echo "make release-check install the built wheel in new environments with Django 5.2, 6.0 and 6.1"
	@echo "make upgrade-fixtures VERSION=0.1.0 store a release and its databases in tests/upgrades"
	@echo "make themes  check the admin under Unfold, Grappelli and Jazzmin; screenshots in var/screens"
	@echo "make torture kill, pause, cut and flood real servers; ARGS='--plan kill --seed 7' selects"
	@echo "make bench   measure the speed on the database of DATABASE_URL; ARGS='--units append,turn'"
	@echo "make recall  count the facts that reach the model after a kill; ARGS=FILE names the dialogues"
	@echo "make search-bench measure what searches find; ARGS='--locomo PATH --beam PATH' names the corpora"
	@echo "make lint    check format, style and imports"
	@echo "make types   check the types"
	@echo "make js      check and test the JavaScript; needs Node.js 20.19 or newer with npm"
	@echo "make front-ends test React, Vue, Svelte, assistant-ui, AG-UI, CopilotKit and TanStack AI against real servers, and docs/examples"
	@echo "make check   check the project, its migrations and the OpenAPI schema"
	@echo "make docs    generate the pages and diagrams that are made from the code, then the site"
	@echo "make site    build the site in build/docs, and fail at a broken link or anchor"
	@echo "make messages collect the texts of the pages and the admin for translators; needs GNU gettext"
	@echo "make peers   run our contract against other memories; ARGS=--write writes docs/reasons/peers.md"
	@echo "make audit   check the locked versions for known vulnerabilities; needs the network"
	@echo "make lock    lock the newest versions that pyproject.toml allows"
	@echo "make ci      everything, on PostgreSQL, MariaDB, SQLite and Redis"
	@echo "make ci-long run the random tests with more examples, those of Hypothesis with other ones each time"
	@echo "make clean   remove .venv, the site and the demo's data"

demo: .venv/demo
	@DJANGO_SETTINGS_MODULE=project.settings DATABASE_URL= REDIS_URL= DEBUG=1 $(BIN)/python manage.py demo $(ARGS)

test: .venv/dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python $(PYTEST) -n 2 --dist worksteal -m "not long" $(ARGS)

# With cached bytecode, the collection takes half of the time, in each of the two processes.
test-fast: .venv/dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python $(PYTEST) -n 2 --dist worksteal \
	    -m "not slow and not long" --hypothesis-profile=fast $(ARGS)

# A test that hangs for five minutes prints where, and fails; the process is replaced.
LONG := -n 3 --dist worksteal -m long --durations=10 \
    -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

MEASURING := benchmarks partitions peers recall search_bench speed

test-long: .venv/dev
	@$(BIN)/python $(PYTEST) $(LONG) $(MEASURING:%=--ignore=tests/programs/%) $(ARGS)

# Not in CI: they take minutes, and nothing of the app depends on these programs.
test-programs: .venv/dev
	@$(BIN)/python $(PYTEST) $(LONG) $(MEASURING:%=tests/programs/%) $(ARGS)

test-django:
	@$(or $(PYTHON),python3) -m venv .venv/django-$(DJANGO)
	@grep -iv '^django==' $(LOCK) > .venv/django-$(DJANGO)/constraints.txt
	@.venv/django-$(DJANGO)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile \
	    -c .venv/django-$(DJANGO)/constraints.txt "Django~=$(DJANGO).0" -e '.[dev]'
	@PYTHONDONTWRITEBYTECODE= .venv/django-$(DJANGO)/bin/python $(PYTEST) -n 2 --dist worksteal \
	    -m "not slow and not long" --hypothesis-profile=fast $(ARGS)

# Minutes, and it needs the package index.
release-check: .venv/dev
	@$(BIN)/python -m tests.release $(ARGS)

upgrade-fixtures: .venv/dev .venv/mariadb
	@$(BIN)/python -m tests.upgrades.build $(VERSION)

# Not in CI: it takes minutes, and new versions of the themes may break it at any time.
THEMES := unfold grappelli jazzmin

themes: .venv/themes
	@for theme in django $(THEMES); do \
	    echo "== $$theme"; \
	    THEME=$$theme .venv/themes/bin/python -m pytest tests/themes/check_theme.py \
	        --ds=tests.themes.settings $(ARGS) || exit; \
	done

.venv/themes: pyproject.toml $(LOCK) .venv/made
	@$(BIN)/python -m venv .venv/themes
	@.venv/themes/bin/python -m pip --disable-pip-version-check --quiet install -c $(LOCK) \
	    -e '.[dev]' 'django-unfold>=0.91,<1' 'django-grappelli>=5.0.1,<6' 'django-jazzmin>=3.0.5,<4'
	@touch $@

torture: .venv/dev .venv/mariadb
	@$(BIN)/python -m tests.programs.torture $(ARGS)

bench: .venv/dev
	@$(BIN)/python -m tests.programs.speed $(ARGS)

recall: .venv/dev
	@$(BIN)/python -m tests.programs.recall $(ARGS)

search-bench: .venv/dev
	@$(BIN)/python -m tests.programs.search_bench $(ARGS)

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .venv/dev
	$(BIN)/mypy chatmemory project tests docs/generate

js: tests/js/node_modules/.made
	@cd tests/js && npm run --silent lint && npm run --silent types && npm test

check: .venv/dev
	$(BIN)/python manage.py check
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py spectacular --validate --fail-on-warn --file /dev/null

docs: .venv/dev
	@for script in docs/generate/*.py; do $(BIN)/python $$script || exit; done
	@$(MAKE) --no-print-directory site

site: .venv/dev
	@$(BIN)/python -m sphinx -W --keep-going -n -q -j 2 -c docs -d build/doctrees . build/docs
	@echo "The site is in build/docs/index.html."

COLLECT := makemessages --all --no-wrap --no-obsolete --add-location file

messages: .venv/dev
	@cd chatmemory && ../$(BIN)/python ../manage.py $(COLLECT)
	@cd chatmemory && ../$(BIN)/python ../manage.py $(COLLECT) -d djangojs
	@cd chatmemory && ../$(BIN)/python ../manage.py compilemessages

# Minutes, and it needs the package registry. `make test-long` runs these tests with fewer cuts and
# kills, and skips those whose packages are missing. They ask for Node.js 22; 20.19 runs them too.
FRONT_ENDS := tests/front_ends $(patsubst %/package.json,%,$(wildcard docs/examples/*/package.json))

front-ends: .venv/dev $(FRONT_ENDS:%=%/node_modules/.made)
	@FRONT_END_CUTS=$${FRONT_END_CUTS:-500} FRONT_END_KILLS=$${FRONT_END_KILLS:-20} \
	    FRONT_END_SENDS=$${FRONT_END_SENDS:-1000} \
	    $(BIN)/python $(PYTEST) tests/front_ends -m long $(ARGS)

peers: .venv/dev .venv/mariadb
	@$(BIN)/python -m tests.programs.peers $(ARGS)

audit: .venv/dev
	@$(PIP) install pip-audit
	@$(BIN)/python -m pip_audit --no-deps --disable-pip -r $(LOCK)

lock:
	@python3 -m venv --clear .venv/lock
	@.venv/lock/bin/python -m pip --quiet install -e '.[dev,mariadb]'
	@echo "# The versions that CI and \`make\` install; \`make lock\` renews them. The ranges are in pyproject.toml." > $(LOCK)
	@.venv/lock/bin/python -m pip freeze --exclude-editable >> $(LOCK)
	@rm -rf .venv/lock

ci:
	@bash .ci/run

ci-long: .venv/dev
	@FUZZ_CALLS=10000 CHATMEMORY_EXAMPLES=200 $(BIN)/python $(PYTEST) -n 2 --dist worksteal -m hypothesis \
	    --hypothesis-profile=random $(ARGS)
	@FUZZ_FACTOR=5 $(BIN)/python $(PYTEST) tests/rendering -m long
	@IMPORTED_CHATS=5000 $(BIN)/python $(PYTEST) tests/imports/test_process.py -m long -k many_chats
	@STREAM_RUNS=1000 STREAM_KILLS=60 $(BIN)/python $(PYTEST) tests/streams/test_schedules.py \
	    tests/streams/test_events_kills.py -m long
	@SEARCH_HISTORIES=2000 SEARCH_RACES=250 SEARCH_QUERIES=20000 SEARCH_ROWS=110000 $(BIN)/python $(PYTEST) \
	    tests/search -m long -k "exactness or races or isolation or scale"
	@THREAD_SCHEDULES=1000 REMOVAL_ROUNDS=100 TURN_KILL_STRIDE=1 $(BIN)/python $(PYTEST) tests/langgraph \
	    -m long -k "schedules or load or kills"

clean:
	rm -rf .venv build var tests/js/node_modules $(FRONT_ENDS:%=%/node_modules)

.venv/demo: requirements.txt pyproject.toml $(LOCK) .venv/made
	@echo "Installing what the demo needs into .venv; this happens once."
	@$(PIP) install -c $(LOCK) -r requirements.txt
	@touch $@

.venv/dev: pyproject.toml $(LOCK) .venv/made
	@echo "Installing what the tests need into .venv; this happens once, and takes a few minutes."
	@$(PIP) install -c $(LOCK) -e '.[dev]'
	@touch $@

.venv/mariadb: .venv/dev
	@$(PIP) install -c $(LOCK) -e '.[mariadb]'
	@touch $@

tests/js/node_modules/.made: tests/js/package.json
	@cd tests/js && npm install
	@touch $@

%/node_modules/.made: %/package-lock.json
	@cd $* && npm ci
	@touch $@

.venv/made:
	@for python in $(PYTHONS); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    recent=$$python; \
	    "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	    "$$python" -m venv --clear .venv && touch $@ && exit; \
	done; \
	if [ -n "$$recent" ]; then \
	    echo "$$recent has no venv module. On Debian and Ubuntu: apt install python3-venv"; \
	else \
	    echo "No Python 3.11 or newer was found. Pass its path: make PYTHON=/path/to/python3"; \
	fi >&2; \
	exit 1
