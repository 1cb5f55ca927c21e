//! Tests of the live tail: filters, bounds and the stream.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use postern_core::clock::Timestamp;
use prometheus::{IntCounter, IntGauge};
use serde_json::Value;

use super::queue::{
    DROP_REPORT_INTERVAL, KEEP_ALIVE_INTERVAL, MAX_BURST, MAX_QUEUED_BYTES, MAX_QUEUED_EVENTS,
};
use super::*;
use crate::config::ClientAddressDetail::{self, Full, Network, Off};

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

fn parse(query: &str, detail: ClientAddressDetail) -> Result<TailFilter, String> {
    let filter = TailFilter::parse(query, detail, |name| name == "orders");
    filter.map_err(|problem| problem.to_json("r")["errors"].to_string())
}

fn filter(query: &str) -> TailFilter {
    parse(query, Full).expect(query)
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

/// Publishes an event as the request record does. Returns whether a reader selected it.
fn publish(tail: &LiveTail, event: &AccessEvent<'_>, details: &TailDetails<'_>) -> bool {
    let Some(selected) = tail.select(event) else {
        return false;
    };
    let mut line = Vec::new();
    event.render(&mut line, Timestamp(1_800_000_000_000), Full);
    selected.publish(&line, details);
    !selected.tails.is_empty()
}

async fn text(reader: &mut TailReader) -> String {
    let chunk = reader.next_chunk().await.expect("not closed");
    String::from_utf8(chunk.to_vec()).expect("UTF-8")
}

#[test]
fn filter_selects_events_with_all_properties() {
    for query in [
        "",
        "route=orders&status=503",
        "status=5xx&code=upstream_unavailable",
        "principal=ada",
        "principal=user",
        "address=192.0.2.0%2F24",
        "address=192.0.2.77",
        "path=%2Forders",
        "sample=1",
        "sample=0.26",
    ] {
        assert!(filter(query).selects(&event()), "{query}");
    }
    for query in [
        "route=none",
        "status=4xx",
        "status=500",
        "code=ok",
        "principal=none",
        "principal=service",
        "principal=service:ada",
        "principal=eve",
        "address=192.0.3.0%2F24",
        "path=%2Forders%2F7",
        "sample=0.25",
        "route=orders&status=2xx",
    ] {
        assert!(!filter(query).selects(&event()), "{query}");
    }
    let service = AccessEvent {
        kind: Some("service"),
        subject: Some("s-1"),
        caller_service: Some("auth"),
        ..event()
    };
    assert!(filter("principal=service:auth").selects(&service));
    let rejected = AccessEvent {
        status: 400,
        ..AccessEvent::default()
    };
    assert!(filter("principal=none").selects(&rejected));
    assert!(!filter("path=%2F").selects(&rejected));
}

#[test]
fn invalid_filter_is_refused_with_its_parameter() {
    for (query, parameter) in [
        ("route=unknown", "?route"),
        ("route=", "?route"),
        ("status=6xx", "?status"),
        ("status=99", "?status"),
        ("status=%2B503", "?status"),
        ("code=nothing", "?code"),
        ("principal=", "?principal"),
        ("principal=service:", "?principal"),
        ("principal=a%0Ab", "?principal"),
        ("address=192.0.2.0%2F33", "?address"),
        ("address=host", "?address"),
        ("path=orders", "?path"),
        ("sample=0", "?sample"),
        ("sample=1.1", "?sample"),
        ("sample=NaN", "?sample"),
        ("rate=0", "?rate"),
        ("rate=1.5", "?rate"),
        ("rate=100001", "?rate"),
        ("sample=x", "?sample"),
        ("follow=no", "?follow"),
        ("limit=1", "?limit"),
        ("status=503&status=5xx", "?status"),
    ] {
        let errors = parse(query, Full).expect_err(query);
        assert!(errors.contains(parameter), "{query}: {errors}");
    }
    let errors = parse("status=x&sample=2", Full).expect_err("two mistakes");
    assert!(errors.contains("?status") && errors.contains("?sample"));
}

#[test]
fn filter_reveals_no_address_that_is_not_logged() {
    assert!(parse("address=10.0.0.0%2F8", Off).is_err());
    for narrower in ["192.0.2.77", "192.0.2.0%2F25", "2001:db8::%2F49"] {
        let query = format!("address={narrower}");
        assert!(parse(&query, Network).is_err(), "{query}");
        assert!(parse(&query, Full).is_ok(), "{query}");
    }
    let network = parse("address=192.0.2.0%2F24", Network).expect("as wide as logged");
    assert!(network.selects(&event()));
    assert!(parse("address=2001:db8::%2F48", Network).is_ok());
}

#[tokio::test(start_paused = true)]
async fn event_has_the_members_of_the_log_and_its_own() {
    let tail = live_tail();
    let mut reader = tail.open(filter("route=orders")).expect("a place");
    let hostile = ["a\"}\n\ndata: {".to_owned(), "b".to_owned()];
    let details = TailDetails {
        host: "<b>\r\nevent: request\r\n",
        groups: &hostile,
        scopes: &hostile[1..],
        ..DETAILS
    };
    assert!(publish(&tail, &event(), &details));
    let sent = text(&mut reader).await;
    let lines: Vec<&str> = sent.lines().collect();
    assert_eq!(lines.len(), 3, "{sent:?}");
    assert_eq!((lines[0], lines[2]), ("event: request", ""));
    let data = lines[1].strip_prefix("data: ").expect("data");
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["host"], details.host);
    assert_eq!(data["groups"][0], hostile[0]);
    assert_eq!(data["scopes"], serde_json::json!(["b"]));
    for (member, value) in [
        ("decision", "forwarded"),
        ("message", "request completed"),
        ("timestamp", "2027-01-15T08:00:00.000Z"),
        ("path", "/orders/42"),
        ("subject", "ada"),
    ] {
        assert_eq!(data[member], value, "{member}");
    }
    let other = AccessEvent {
        route: Some("other"),
        ..event()
    };
    assert!(!publish(&tail, &other, &DETAILS));
    drop(reader);
    assert_eq!(tail.metrics.tails.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn events_above_the_bounds_are_dropped_and_counted() {
    let tail = live_tail();
    let mut reader = tail.open(filter("")).expect("a place");
    for _ in 0..MAX_QUEUED_EVENTS + 7 {
        publish(&tail, &event(), &DETAILS);
    }
    assert_eq!(tail.metrics.dropped.get(), 7);
    let sent = text(&mut reader).await;
    assert_eq!(sent.matches("event: request").count(), MAX_QUEUED_EVENTS);
    assert!(!sent.contains("event: dropped"), "not within a second");
    let began = Instant::now();
    let sent = text(&mut reader).await;
    assert_eq!(sent, "event: dropped\ndata: {\"count\":7}\n\n");
    assert!(began.elapsed() <= DROP_REPORT_INTERVAL);
    let path = format!("/{}", "x".repeat(8 << 10));
    let long = AccessEvent {
        path: Some(&path),
        ..event()
    };
    for _ in 0..MAX_QUEUED_EVENTS {
        publish(&tail, &long, &DETAILS);
    }
    let bytes = reader.next_chunk().await.expect("not closed").len();
    assert!(bytes <= MAX_QUEUED_BYTES + 64, "{bytes}");
    let first = tail.metrics.dropped.get();
    assert!(first > 7 + 800, "{first}");
}

#[tokio::test(start_paused = true)]
async fn events_above_the_rate_of_a_reader_are_dropped() {
    let tail = live_tail();
    let mut reader = tail.open(filter("rate=100")).expect("a place");
    let mut unlimited = tail.open(filter("")).expect("a place");
    let (mut seen, mut all, mut dropped) = (0, 0, 0);
    let began = Instant::now();
    // 1,000 per second for 3 s.
    for _ in 0..3000 {
        publish(&tail, &event(), &DETAILS);
        tokio::time::advance(Duration::from_millis(1)).await;
        let chunks = [&mut reader, &mut unlimited].map(|reader| reader.next_chunk().now_or_never());
        let [paced, other] = chunks.map(|chunk| chunk.flatten().unwrap_or_default());
        let [paced, other] = [&paced, &other].map(|chunk| String::from_utf8_lossy(chunk));
        seen += paced.matches("event: request").count();
        all += other.matches("event: request").count();
        dropped += dropped_in(&paced);
    }
    assert!(
        began.elapsed() <= Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let burst = 100 * MAX_BURST.as_millis() as usize / 1000;
    assert!((300..=300 + burst + 1).contains(&seen), "{seen}");
    assert!(all > 2900, "{all}");
    // The last report comes although no other event follows.
    while seen + dropped < 3000 {
        let last = text(&mut reader).await;
        assert!(!last.contains("keep-alive"), "{seen} and {dropped}");
        seen += last.matches("event: request").count();
        dropped += dropped_in(&last);
    }
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
async fn slow_reader_does_not_affect_a_fast_one() {
    let tail = live_tail();
    let mut fast = tail.open(filter("")).expect("a place");
    let _slow = tail.open(filter("")).expect("a place");
    let mut seen = 0;
    for _ in 0..4 {
        for _ in 0..MAX_QUEUED_EVENTS {
            publish(&tail, &event(), &DETAILS);
        }
        seen += text(&mut fast).await.matches("event: request").count();
    }
    assert_eq!(seen, 4 * MAX_QUEUED_EVENTS);
    let dropped = 3 * MAX_QUEUED_EVENTS as u64;
    assert_eq!(tail.metrics.dropped.get(), dropped, "those of the slow one");
}

#[tokio::test(start_paused = true)]
async fn reader_begins_with_the_newest_events_that_it_selects() {
    let tail = live_tail();
    let path = format!("/{}", "x".repeat(900));
    for status in [200, 503] {
        for _ in 0..2 * history::MAX_EVENTS {
            let event = AccessEvent {
                status,
                path: Some(&path),
                ..event()
            };
            publish(&tail, &event, &DETAILS);
            tokio::time::advance(Duration::from_millis(2)).await;
        }
    }
    publish(&tail, &event(), &DETAILS);
    let all = tail.recent(&filter(""));
    let bytes: usize = all.iter().map(Bytes::len).sum();
    assert!(
        bytes <= MAX_QUEUED_BYTES && all.len() > 600,
        "{bytes} {}",
        all.len()
    );
    let query = "status=5xx&route=orders&path=%2Forders&principal=ada&address=192.0.2.77&code=upstream_unavailable";
    let mut reader = tail.open(filter(query)).expect("a place");
    assert_eq!(text(&mut reader).await.matches("event: request").count(), 1);
    assert!(
        tail.recent(&filter("status=2xx")).is_empty(),
        "the oldest are forgotten"
    );
    assert_eq!(tail.metrics.dropped.get(), 0);
    // A burst is kept as far as the rate admits.
    let burst = live_tail();
    for _ in 0..history::MAX_EVENTS {
        publish(&burst, &event(), &DETAILS);
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
    assert_eq!(began.elapsed(), KEEP_ALIVE_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn ninth_reader_replaces_a_stalled_one_only() {
    let tail = live_tail();
    let open = || tail.open(filter(""));
    let mut readers: Vec<TailReader> = (0..MAX_TAILS).map(|_| open().expect("a place")).collect();
    assert!(open().is_none());
    let mut stalled = readers.pop().expect("one");
    for _ in 0..3 {
        for sent in join_all(readers.iter_mut().map(text)).await {
            assert_eq!(sent, ": keep-alive\n\n");
        }
    }
    let newest = open().expect("the place of the stalled one");
    assert_eq!(stalled.next_chunk().await, None);
    drop(stalled);
    assert_eq!(tail.metrics.tails.get(), 8);
    assert!(open().is_none());
    drop((readers, newest));
    assert_eq!(tail.metrics.tails.get(), 0);
}
