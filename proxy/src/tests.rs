//! Tests of the gateway over real sockets: the bytes that an origin receives, and the responses to
//! clients.

mod access_events;
mod access_lists;
mod acme;
mod admin_api;
mod admin_client;
mod agreement;
mod ambiguous_paths;
mod answers;
mod api_keys;
mod bodies;
mod certificate_folder;
mod certificate_warnings;
mod client_certificates;
mod compression;
mod compression_client;
mod config_checks;
mod config_editing;
mod config_editing_hostile;
mod connection_authentication;
mod connections;
mod cors;
mod early_responses;
mod external_authorization;
mod forwarded;
mod grpc_peer;
mod h2c;
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
mod log_events;
mod migrating;
mod migrating_peers;
mod mirroring;
mod one_attacker;
mod origin;
mod proxy_protocol;
pub(crate) mod random_routes;
mod rate_limits;
mod raw_client;
mod rejected_requests;
mod rejected_responses;
mod reload;
mod report_only;
mod requests;
mod response_budget;
mod route_list;
mod scripted_origin;
mod server_names;
mod shared_connections;
mod shutdown;
mod slow_clients;
mod socket_activation;
mod spans;
mod tls;
mod tls_gateway;
mod truncated_responses;
mod tunnel_expiry;
mod upgrade;
mod uploads;
mod upstream_settings;
mod upstream_shares;
mod upstreams;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use http::HeaderMap;
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::config::{Env, parse};
use postern_core::exit::Exit;
use postern_core::testing::{CapturedLog, assert_members};
use postern_http::message::framing::BodyFraming;
use postern_http::message::head::BodyKind;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use certificate_folder::{CertificateFolder, first_certificate, free_port, run, s_client};
use harness::{
    ADMIN_TOKEN, ROUTES, STEP_TIMEOUT, TestGateway, bind, connect_narrow, in_time, route,
    route_table, unused_address, wait_for, wait_until,
};
use origin::{OriginBehavior, TestOrigin};
use raw_client::{
    GET, RawClient, RawResponse, UPGRADE, assert_fields, bearer, content_length, fetch, has_field,
    values,
};
use scripted_origin::{
    OK, OriginConnection, answer_http2, http2_client, http2_client_on, start_http2,
};
use tls::{CertificateAuthority, UpstreamTls};
use tls_gateway::{TlsGateway, call, get, head, open_body, reply, send, status, upload};
use upstream_shares::{begin_from, client_from, connect_from, http2_from};

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

/// A listener and an upstream, in four lines.
pub(crate) const LISTENER_AND_ORIGIN: &str =
    "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.origin]\naddresses = [\"127.0.0.1:2\"]\n";

/// Reads a configuration with a listener, the upstream `origin` and these tables, or returns its
/// mistakes.
pub(crate) fn read_tables(tables: &str) -> Result<Config, String> {
    let config = read_config(&format!("{LISTENER_AND_ORIGIN}{tables}"));
    config.map_err(|exit| exit.message().to_owned())
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(pattern.len());
    windows.position(|window| window == pattern)
}

/// Returns the rows of a table, whose cells are separated by bars. `\r\n` in a cell is a line break.
pub(crate) fn rows<const CELLS: usize>(table: &str) -> Vec<[String; CELLS]> {
    let row = |line: &str| {
        let cells = line
            .split('|')
            .map(|cell| cell.trim().replace("\\r", "\r").replace("\\n", "\n"));
        let cells: Vec<String> = cells.collect();
        cells.try_into().unwrap_or_else(|_| panic!("{line}"))
    };
    table.trim().lines().map(row).collect()
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
