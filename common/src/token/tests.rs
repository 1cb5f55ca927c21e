mod cache;
mod jwks;
mod kit;
mod oidc;
mod properties;
mod refusals;
mod truth_table;
mod vectors;
