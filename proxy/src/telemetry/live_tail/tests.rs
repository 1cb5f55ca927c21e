//! Tests of the live tail: filters, bounds and the stream.

use std::net::IpAddr;

use futures_util::FutureExt as _;
use postern_core::clock::Timestamp;
use prometheus::{IntCounter, IntGauge};

use super::reader::KEEP_ALIVE_INTERVAL;
use super::*;
use crate::config::ClientAddressDetail::{self, Full, Network, Off};
use crate::telemetry::AccessEvent;

const DETAILS: TailDetails<'_> = TailDetails {
    host: "gate.example",
    decision: "forwarded",
    groups: &[],
    scopes: &[],
};

fn live_tail() -> Arc<LiveTail> {
    LiveTail::new(LiveTailMetrics {
        tails: IntGauge::new("tails", "tails").expect("a name"),
        dropped: IntCounter::new("dropped", "dropped").expect("a name"),
    })
}

fn parse(query: &str) -> Result<TailFilter, String> {
    let filter = TailFilter::parse(query, |name| name == "orders");
    filter.map_err(|problem| problem.to_json("r")["errors"].to_string())
}

fn filter(query: &str) -> TailFilter {
    parse(query).expect(query)
}

fn event() -> AccessEvent<'static> {
    AccessEvent {
        request_id: "019aa0c4-8f00-7c3a-b5d1-5a7f40000000",
        method: Some("GET"),
        path: Some("/orders/42"),
        route: Some("orders"),
        status: 503,
        code: "upstream_unavailable",
        kind: Some("user"),
        subject: Some("ada"),
        client: Some(IpAddr::from([192, 0, 2, 77])),
        protocol: "HTTP/1.1",
        ..AccessEvent::default()
    }
}

fn line(event: &AccessEvent<'_>, detail: ClientAddressDetail) -> Vec<u8> {
    let mut line = Vec::new();
    event.render(&mut line, Timestamp(1_800_000_000_000), detail);
    line
}

fn selects(query: &str, event: &AccessEvent<'_>, detail: ClientAddressDetail) -> bool {
    let event = DETAILS.server_sent_event(&line(event, detail));
    filter(query).selects(&event)
}

fn publish(tail: &LiveTail, event: &AccessEvent<'_>) {
    if tail.admits() {
        tail.publish(&line(event, Full), &DETAILS);
    }
}

async fn text(reader: &mut TailReader) -> String {
    String::from_utf8(reader.next_chunk().await.to_vec()).expect("UTF-8")
}

#[test]
fn filter_selects_events_with_all_properties() {
    let selecting = "|route=orders&status=503|status=5xx&code=upstream_unavailable|principal=ada|\
        principal=user|address=192.0.2.0%2F24|address=192.0.2.77|path=%2Forders";
    for query in selecting.split('|') {
        assert!(selects(query, &event(), Full), "{query}");
    }
    let others = "route=none|status=4xx|status=500|code=ok|principal=none|principal=service|\
        principal=service:ada|principal=eve|address=192.0.3.0%2F24|path=%2Forders%2F7|\
        route=orders&status=2xx";
    for query in others.split('|') {
        assert!(!selects(query, &event(), Full), "{query}");
    }
    let service = AccessEvent {
        kind: Some("service"),
        subject: Some("s-1"),
        caller_service: Some("auth"),
        ..event()
    };
    assert!(selects("principal=service:auth", &service, Full));
    let rejected = AccessEvent {
        status: 400,
        ..AccessEvent::default()
    };
    assert!(selects("principal=none", &rejected, Full));
    assert!(!selects("path=%2F", &rejected, Full));
}

#[test]
fn invalid_filter_is_refused_with_its_parameter() {
    let queries = "route=unknown|route=|status=6xx|status=99|status=%2B503|code=nothing|principal=|\
        principal=service:|principal=a%0Ab|address=192.0.2.0%2F33|address=host|path=orders|follow=no|\
        limit=1|status=503&status=5xx";
    for query in queries.split('|') {
        let errors = parse(query).expect_err(query);
        let parameter = format!("?{}", query.split('=').next().unwrap_or_default());
        assert!(errors.contains(&parameter), "{query}: {errors}");
    }
    let errors = parse("status=x&path=y").expect_err("two mistakes");
    assert!(errors.contains("?status") && errors.contains("?path"));
}

#[test]
fn filter_reveals_no_address_that_is_not_logged() {
    let selects = |query: &str, detail| selects(query, &event(), detail);
    assert!(!selects("address=0.0.0.0%2F0", Off));
    for narrower in ["192.0.2.77", "192.0.2.64%2F26"] {
        let query = format!("address={narrower}");
        assert!(!selects(&query, Network), "{query}");
        assert!(selects(&query, Full), "{query}");
    }
    assert!(selects("address=192.0.2.0%2F24", Network));
}

/// Publishes events at half of the maximum rate.
async fn publish_slowly(tail: &LiveTail, count: usize, event: &AccessEvent<'_>) {
    for _ in 0..count {
        publish(tail, event);
        tokio::time::advance(Duration::from_millis(4)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_do_not_fit_are_dropped_and_counted() {
    let tail = live_tail();
    let mut reader = tail.open(filter("")).expect("a place");
    publish_slowly(&tail, MAX_WAITING_EVENTS + 7, &event()).await;
    let sent = text(&mut reader).await;
    assert_eq!(sent.matches("event: request").count(), MAX_WAITING_EVENTS);
    assert_eq!((dropped_in(&sent), tail.metrics.dropped.get()), (7, 7));
}

#[tokio::test(start_paused = true)]
async fn events_above_the_maximum_rate_are_dropped() {
    let tail = live_tail();
    let mut reader = tail.open(filter("")).expect("a place");
    let (mut seen, mut dropped) = (0, 0);
    // 1,000 per second for 3 s.
    for _ in 0..3000 {
        publish(&tail, &event());
        tokio::time::advance(Duration::from_millis(1)).await;
        let chunk = reader.next_chunk().now_or_never().unwrap_or_default();
        let chunk = String::from_utf8_lossy(&chunk);
        seen += chunk.matches("event: request").count();
        dropped += dropped_in(&chunk);
    }
    // The last report comes with the next event, or with a comment.
    let last = text(&mut reader).await;
    seen += last.matches("event: request").count();
    dropped += dropped_in(&last);
    assert!((1500..1700).contains(&seen), "{seen}");
    assert_eq!(seen + dropped, 3000);
    assert_eq!(tail.metrics.dropped.get(), dropped as u64);
}

/// Returns the sum of the reports of dropped events.
fn dropped_in(text: &str) -> usize {
    let reports = text.split("event: dropped\ndata: {\"count\":").skip(1);
    reports
        .filter_map(|report| report.split('}').next()?.parse::<usize>().ok())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn reader_begins_with_the_newest_events_that_it_selects() {
    let tail = live_tail();
    let path = format!("/{}", "x".repeat(900));
    for status in [200, 503] {
        for _ in 0..2 * MAX_RECENT_EVENTS {
            let event = AccessEvent {
                status,
                path: Some(&path),
                ..event()
            };
            publish(&tail, &event);
            tokio::time::advance(Duration::from_millis(2)).await;
        }
    }
    publish(&tail, &event());
    let all = tail.recent(&filter(""));
    let bytes: usize = all.iter().map(Bytes::len).sum();
    let holds = bytes <= MAX_RECENT_BYTES && all.len() > 600;
    assert!(holds, "{bytes} {}", all.len());
    let query = "status=5xx&route=orders&path=%2Forders&principal=ada&address=192.0.2.77&code=upstream_unavailable";
    let mut reader = tail.open(filter(query)).expect("a place");
    assert_eq!(text(&mut reader).await.matches("event: request").count(), 1);
    // The oldest are forgotten.
    assert!(tail.recent(&filter("status=2xx")).is_empty());
    assert_eq!(tail.metrics.dropped.get(), 0);
    // A burst is kept as far as the rate admits.
    let burst = live_tail();
    for _ in 0..MAX_RECENT_EVENTS {
        publish(&burst, &event());
    }
    let kept = burst.recent(&filter("follow=false")).len();
    assert!((100..200).contains(&kept), "{kept}");
}

#[tokio::test(start_paused = true)]
async fn idle_stream_gets_comments() {
    let tail = live_tail();
    let mut reader = tail.open(filter("")).expect("a place");
    let began = Instant::now();
    assert_eq!(text(&mut reader).await, ": keep-alive\n\n");
    assert_eq!(began.elapsed().as_secs(), KEEP_ALIVE_INTERVAL.as_secs());
}
