#!/bin/sh
# Patroni calls this once, with the address of the new database. There is no standby yet that could confirm a commit.
set -eu
PGOPTIONS="-c synchronous_commit=local" psql --dbname "$1" --set ON_ERROR_STOP=1 --set password="$FEDCASCADE_PASSWORD" <<'SQL'
CREATE ROLE fedcascade LOGIN PASSWORD :'password';
CREATE DATABASE fedcascade OWNER fedcascade;
SQL
