# rmqtool: `make demo` shows it, `make test` checks it. Everything is kept in .venv and build.

SHELL := /bin/sh
BIN := .venv/bin
DEMO_CASE := ok_540_clean
DEMO_STORE := build/demo/store
# By path, not by a hook of imports: Spark looks for data sources among the modules of the path.
EDITABLE := --config-settings editable_mode=compat -e
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# The newest Python on PATH that can make a venv. Each is tried: some are shims that only print an error.
PYTHON = $(shell IFS=:; for version in 3.14 3.13 3.12 3.11 3; do for folder in $$PATH; do \
	python="$$folder/python$$version"; test -x "$$python" && "$$python" -c 'import sys, venv, ensurepip; \
	sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && { echo "$$python"; exit; }; \
	done; done)

# What `make interop` runs: real brokers and their libraries, on Java 17.
ROCKETMQ := 4.9.7 5.3.3 5.4.0
JDK = $(shell for folder in "$${JAVA_HOME:-/none}" /usr/lib/jvm/*17* \
	"$$(dirname "$$(dirname "$$(readlink -f "$$(command -v javac)")")")"; do \
	"$$folder/bin/javac" -version 2>&1 | grep -q '^javac 17' && { echo "$$folder"; exit; }; done)

# Else every program that a test starts compiles all sources of rmqtool: 0.3 s each time.
unexport PYTHONDONTWRITEBYTECODE

N = 100
SEED = 1

# Spark runs on any Java from 17 on.
JAVA = $(shell for java in "$${JAVA_HOME:-/none}/bin/java" "$$(command -v java)" /usr/lib/jvm/*/bin/java; do \
	version=$$("$$java" -version 2>&1 | sed -n '/version "/{s/.*version "\([0-9]*\).*/\1/p;q;}'); \
	test "$${version:-0}" -ge 17 && { echo "$$java"; exit; }; done)

.PHONY: demo test lint types man man-check bench bench-smoke bench-tail sweep soak fuzz interop java jre cc chromium release-check clean
.PRECIOUS: build/interop/%/lib.done build/interop/%/classes.done

demo: .venv/base
	@rm -rf build/demo && mkdir -p build/demo && $(BIN)/python -m tests.support.stores $(DEMO_CASE) $(DEMO_STORE)
	@run() { echo; echo "$$ rmqtool $$*"; $(BIN)/rmqtool "$$@"; }; \
	run info $(DEMO_STORE) && run dump $(DEMO_STORE) --limit 5 && run verify $(DEMO_STORE) && \
	run append $(DEMO_STORE) --create-topic --topic Orders --tag paid --key order-17 --body '1 book' && \
	run deliver $(DEMO_STORE); test $$? -le 1
	@echo; echo 'A copy of it that has lost a page of its log:'; \
	$(BIN)/python -m tests.support.stores 5.4.0:clean:zero-page-last-file:noabort build/demo/damaged; \
	echo "$$ rmqtool recover build/demo/damaged"; $(BIN)/rmqtool recover build/demo/damaged; test $$? -le 1

# One process more than the machine has processors, up to four: some tests wait.
WORKERS := $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((n < 4 ? n + 1 : 4)))

# The kernels are compiled first, once: else the processes of the tests and of Spark would each compile them.
test: .venv/dev | jre cc
	@$(BIN)/python -m tests.tools.kernels
	@mkdir -p build; echo 'the Spark tests run at the same time; their report comes at the end (build/test-spark.log)'
	@$(BIN)/python -m pytest -p no:cacheprovider --basetemp build/test-spark tests/spark >build/test-spark.log 2>&1 & spark=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/spark; code=$$?; \
	wait $$spark || code=$$?; cat build/test-spark.log; exit $$code

# The tests of which `make test` takes a sample, whole; SWEEP names files or folders, all without.
SWEEP := tests
sweep: .venv/dev
	RMQTOOL_SWEEP=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m sweep $(SWEEP)

# The suite RUNS times at a load of LOAD, half of them below nohup; FIRST is the seed of the first, TESTS what is run.
RUNS := 20
LOAD := 10
FIRST := 1
TESTS := tests --ignore=tests/spark
soak: .venv/dev
	$(BIN)/python -m tests.tools.soak $(RUNS) --load $(LOAD) --first $(FIRST) $(TESTS)

# N stores, four times as many files from outside, and 64 times as many inputs of decoders: see tests/fuzz.
fuzz: .venv/dev
	$(BIN)/python -m tests.fuzz $(N) --seed $(SEED)

# Without the right to install, the Spark tests skip and say so; in CI they fail.
jre:
	@if test -n '$(JAVA)'; then exit; fi; as=; \
	if test "$$(id -u)" != 0; then test -n "$$CI" && command -v sudo >/dev/null && as=sudo || as=no; fi; \
	if test "$$as" = no || ! command -v apt-get >/dev/null; then \
		echo 'the Spark tests need Java 17 or newer: apt-get install openjdk-17-jre-headless' >&2; exit; fi; \
	echo 'installing Java for the Spark tests' && $$as apt-get update -qq && \
	for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do \
		apt-cache show "$$package" >/dev/null 2>&1 && \
		$$as apt-get install -qq -y --no-install-recommends "$$package" >/dev/null && exit; \
	done; echo 'no Java could be installed' >&2

lint: .venv/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

man: .venv/base
	$(BIN)/python -m rmqtool.manpages man

man-check: .venv/base
	$(BIN)/python -m rmqtool.manpages --check man

# QUICK=1: small amounts, less than five minutes. AREAS: some of read, recover, append, lookup, net, spark, growth.
# BUDGET: seconds of a row, after which no round begins.
SCALE := $(if $(QUICK),quick,full)
bench: .venv/dev build/bench/classes.done
	JAVA_HOME='$(JDK)' $(BIN)/python -m tests.benchmarks --scale $(SCALE) $(if $(BUDGET),--budget $(BUDGET)) $(AREAS)

bench-smoke:
	$(MAKE) --no-print-directory bench SCALE=small

# `tail --follow` of a broker that receives 20,000 messages/s.
bench-tail: .venv/dev $(ROCKETMQ:%=build/interop/%/classes.done)
	LAB_TAIL_SECONDS=30 JAVA_HOME='$(JDK)' $(BIN)/python -m pytest -s -o python_files='interop_*.py' \
		tests/interop/interop_tail.py -k keeps_up

build/bench/classes.done: build/interop/5.4.0/classes.done $(wildcard tests/benchmarks/*.java)
	@'$(JDK)/bin/javac' -nowarn -Xlint:none -cp '$(<D)/lib/*' -d $(@D)/classes tests/benchmarks/*.java && touch $@

interop: .venv/dev $(ROCKETMQ:%=build/interop/%/classes.done) build/interop/hdfs/lib.done | chromium
	JAVA_HOME='$(JDK)' $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -o python_files='interop_*.py' \
		tests/interop

build/interop/%/classes.done: build/interop/%/lib.done $(wildcard tests/interop/java/*.java)
	@rm -rf $(@D)/classes && '$(JDK)/bin/javac' -nowarn -Xlint:none -XDsuppressNotes -cp '$(@D)/lib/*' -d $(@D)/classes \
		tests/interop/java/*.java && touch $@

build/interop/%/lib.done: tests/interop/pom.xml | java
	@echo 'fetching RocketMQ $* with maven' && rm -rf $(@D)/lib && JAVA_HOME='$(JDK)' mvn -B -q -ntp -f $< \
		-Drocketmq.version=$* -Dmaven.wagon.http.retryHandler.count=3 dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory='$(CURDIR)/$(@D)/lib' && touch $@

build/interop/hdfs/lib.done: tests/interop/hdfs/pom.xml | java
	@echo 'fetching Hadoop with maven' && rm -rf $(@D)/lib && JAVA_HOME='$(JDK)' mvn -B -q -ntp -f $< \
		-Dmaven.wagon.http.retryHandler.count=3 dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory='$(CURDIR)/$(@D)/lib' && touch $@

# The library of tests/faults. As for Java: without the right to install its tests skip, in CI they fail.
cc:
	@if command -v cc >/dev/null || command -v gcc >/dev/null || ! command -v apt-get >/dev/null; then exit; fi; as=; \
	if test "$$(id -u)" != 0; then test -n "$$CI" && command -v sudo >/dev/null && as=sudo || exit 0; fi; \
	echo 'installing gcc for the tests of failing files' && $$as apt-get update -qq && \
	$$as apt-get install -qq -y --no-install-recommends gcc libc6-dev >/dev/null || echo 'no gcc could be installed' >&2

java:
	@if test -n '$(JDK)' && command -v mvn >/dev/null; then exit; fi; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then echo 'installing Java 17 and maven' && \
		apt-get update -qq && apt-get install -qq -y --no-upgrade --no-install-recommends openjdk-17-jdk-headless maven >/dev/null; \
	else echo 'the interop lab needs a JDK 17 (JAVA_HOME, or below /usr/lib/jvm) and maven:' \
		'apt-get install openjdk-17-jdk-headless maven' >&2; exit 1; fi

# For the page of `report`. Without the right to install, its tests skip; in CI they fail.
chromium:
	@if command -v chromium >/dev/null || ! command -v apt-get >/dev/null || test "$$(id -u)" != 0; then exit; fi; \
	echo 'installing chromium for the tests of the page of report' && apt-get update -qq && \
	apt-get install -qq -y --no-install-recommends chromium >/dev/null || echo 'no chromium could be installed' >&2

release-check: .venv/dev
	$(BIN)/python -m tests.tools.release_check build/release

clean:
	rm -rf .venv build rmqtool.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/base: pyproject.toml constraints.txt
	@python='$(PYTHON)'; test -n "$$python" || { echo 'rmqtool needs python3.11 to python3.14 that can make a venv:' \
		'apt-get install python3 python3-venv (or: dnf install python3.12; brew install python)' >&2; exit 1; }; \
	echo "installing rmqtool into .venv with $$python" && "$$python" -m venv .venv
	@$(PIP_INSTALL) $(EDITABLE) . && touch $@

.venv/dev: .venv/base
	@$(PIP_INSTALL) $(EDITABLE) '.[all]' && touch $@
