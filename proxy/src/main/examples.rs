//! The examples in `--help` of `postern-proxy`.

pub(super) const PROGRAM: &str = "\
Example:
  postern-proxy --config /etc/postern/proxy.toml";
pub(super) const RUN: &str = "\
Examples:
  postern-proxy run --config /etc/postern/proxy.toml
  postern-proxy run --take-over";
pub(super) const CHECK: &str = "\
Examples:
  postern-proxy check conf/proxy.toml --strict
  postern-proxy check --json";
pub(super) const EXPLAIN: &str = "\
Examples:
  postern-proxy explain GET https://api.example.com/actors/42 --token user:42
  postern-proxy explain POST /notifications --token service:billing --json";
pub(super) const DIFF: &str = "\
Example:
  postern-proxy diff old/proxy.toml conf/proxy.toml --fail-on widened";
pub(super) const CREATE: &str = "\
Example:
  postern-proxy api-key create --name partner-x --scopes read,write --expires-in-days 365";
pub(super) const SCHEMA: &str = "\
Example:
  postern-proxy schema > proxy.schema.json";
