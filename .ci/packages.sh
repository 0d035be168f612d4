# What tests need of the system's packages; .ci/run reads this file. With the packages, a test of them that is skipped is a
# failure. Without apt-get, or as another user than root, nothing is installed: a line says which tests are skipped.

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_packages() {
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$@"; } \
    >/dev/null || true
}

# Tests of SQL start servers of their own, as a user without rights. Only the programs are needed, no cluster of Debian's.
has_databases() { compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null && command -v mariadb-install-db >/dev/null && command -v my_print_defaults >/dev/null; }

postgres_settings=/etc/postgresql-common

install_databases() {
  if ! has_databases && can_install; then
    mkdir -p "$postgres_settings"
    # Else the package makes a cluster, and starts it.
    [ -e "$postgres_settings/createcluster.conf" ] ||
      echo "create_main_cluster = false" >"$postgres_settings/createcluster.conf"
    install_packages postgresql mariadb-server-core mariadb-client-core
  fi
  if has_databases; then export EDL_REQUIRE_DATABASES=1; else
    echo "PostgreSQL and MariaDB are not installed: the tests that need these servers are skipped." >&2; fi
}

# Programs in PyTorch are tested with that of the system's Python, which was built for CPUs and NumPy 1. EDL needs Python 3.11.
has_torch() {
  /usr/bin/python3 -c 'import importlib.util as u, sys; sys.exit(sys.version_info < (3, 11) or not u.find_spec("torch"))' \
    2>/dev/null
}

install_torch() {
  if ! has_torch && can_install; then install_packages python3-torch; fi
  if has_torch; then export EDL_REQUIRE_TORCH=1; else
    echo "The system's Python has no PyTorch: the tests of programs in PyTorch are skipped." >&2; fi
}
