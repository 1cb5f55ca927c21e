//! Tests of the gateway over real sockets: the bytes that an origin receives, and the responses to
//! clients.

mod access_events;
mod access_lists;
mod acme;
mod acme_proxy;
mod admin_api;
mod admin_client;
mod agreement;
mod ambiguous_paths;
mod answer_config;
mod answers;
mod any_origin;
mod api_keys;
mod bodies;
mod certificate_folder;
mod certificate_warnings;
mod client_certificates;
mod compression;
mod compression_client;
mod compression_peers;
mod config_checks;
mod config_editing;
mod config_editing_hostile;
mod connection_authentication;
mod connections;
mod cors;
mod defaults;
mod draining;
mod early_responses;
mod external_authorization;
mod forwarded;
mod grpc;
mod grpc_peer;
mod harness;
mod header_changes;
mod hot_restart;
mod http10;
mod http2;
mod http2_frames;
mod http2_responses;
mod http2_upstream;
mod idle_connections;
mod live_tail;
mod load_balancers;
mod load_balancing;
mod log_events;
pub(crate) mod logs;
mod migrating;
mod migrating_peers;
mod mirroring;
mod nginx_peer;
mod one_attacker;
mod origin;
mod problem_pages;
mod proxy_protocol;
mod proxy_protocol_upstream;
mod rate_limits;
mod rate_limits_report_only;
mod raw_client;
mod references;
mod rejected_requests;
mod rejected_responses;
mod reload;
mod requests;
mod response_budget;
mod route_list;
mod scripted_origin;
mod server_names;
mod shared_connections;
mod shutdown;
mod slow_clients;
mod slow_readers;
mod socket_activation;
mod spans;
mod tls;
mod tls_gateway;
mod tls_settings;
mod traefik_peer;
mod traffic_rules;
mod truncated_responses;
mod tunnel_backpressure;
mod tunnel_expiry;
mod upgrade;
mod upgrade_refusals;
mod uploads;
mod upstream_settings;
mod upstream_shares;
mod upstreams;

use postern_core::config::{Env, parse};
use postern_core::exit::Exit;

use crate::Config;

/// The variables of both user pools, of a collector and of the admin listener.
fn env() -> Env {
    Env::from([
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "web"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "machines"),
        ("COLLECTOR_TOKEN", "Bearer collector"),
        ("POSTERN_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef"),
    ])
}

/// Reads a configuration with both user pools.
pub(crate) fn read_config(text: &str) -> Result<Config, Exit> {
    parse("p.toml", text, |root| Config::read(root, &env()))
}

/// A generator of choices (SplitMix64), so that a failure can be repeated.
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).expect("a small number")
    }

    pub(crate) fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}
