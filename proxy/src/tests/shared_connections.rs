//! HTTP/2 connections that carry requests of several clients, one of which misbehaves.

use h2::client::ResponseFuture;
use tokio::sync::watch;

use super::scripted_origin::{gateway, start};
use super::*;

/// Clients whose requests must all be answered.
const USERS: u8 = 20;

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.1/32\"]";

/// An origin whose answers wait until they are permitted.
struct WaitingOrigin {
    address: SocketAddr,
    arrived: Arc<AtomicUsize>,
    permits: watch::Sender<bool>,
}

impl WaitingOrigin {
    async fn start() -> Self {
        let (permits, permitted) = watch::channel(false);
        let arrived = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&arrived);
        let script = move |mut connection: OriginConnection| {
            let (count, mut permitted) = (Arc::clone(&count), permitted.clone());
            async move {
                while connection.take_head().await.is_some() {
                    count.fetch_add(1, Ordering::Relaxed);
                    drop(permitted.wait_for(|it| *it).await);
                    connection.send(OK).await;
                }
            }
        };
        let address = start(script).await;
        Self {
            address,
            arrived,
            permits,
        }
    }

    async fn until_arrived(&self, count: usize) {
        wait_until(async || self.arrived.load(Ordering::Relaxed) >= count).await;
    }
}

/// Sends a request of a client that a trusted proxy reports.
fn send_for(client: &mut SendRequest<Bytes>, last: u8, path: &str) -> ResponseFuture {
    let address = format!("192.0.2.{last}");
    let fields = [("x-forwarded-for", address.as_str())];
    send(client, head("GET", path, &fields), true).0
}

async fn send_many_fields(client: &mut SendRequest<Bytes>, address: &str) -> u16 {
    let names: Vec<String> = (0..101).map(|at| format!("x-{at}")).collect();
    let many = names.iter().map(|name| (name.as_str(), "1"));
    let fields: Vec<_> = many.chain([("x-forwarded-for", address)]).collect();
    get(client, "/open", &fields).await.status
}

async fn count_answered(answers: Vec<ResponseFuture>) -> usize {
    let mut answered = 0;
    for answer in answers {
        answered += usize::from(reply(answer).await.is_ok_and(|it| it.status == 200));
    }
    answered
}

#[tokio::test]
async fn connection_of_a_trusted_proxy_outlives_one_client() {
    for attack in ["/open//a", "/open/a%2fb", "fields", "reset"] {
        let origin = WaitingOrigin::start().await;
        let gateway = gateway(&[origin.address], "", TRUSTED).await;
        let mut client = http2_client(&gateway, 65_535).await;
        let users = (1..=USERS).map(|last| send_for(&mut client, last, "/open"));
        let users: Vec<_> = users.collect();
        origin.until_arrived(USERS.into()).await;
        for number in 0..110 {
            let address = [("x-forwarded-for", "198.51.100.1")];
            match attack {
                "reset" => {
                    let request = head("GET", "/open", &address);
                    let (_answer, mut stream) = send(&mut client, request, true);
                    origin.until_arrived(usize::from(USERS) + number + 1).await;
                    stream.send_reset(h2::Reason::CANCEL);
                }
                "fields" => assert_eq!(send_many_fields(&mut client, address[0].1).await, 431),
                path => assert_eq!(get(&mut client, path, &address).await.status, 400),
            }
        }
        origin.permits.send_replace(true);
        assert_eq!(count_answered(users).await, usize::from(USERS), "{attack}");
        assert_eq!(get(&mut client, "/open", &[]).await.status, 200, "{attack}");
    }
}

#[tokio::test]
async fn early_ends_are_counted_by_forwarded_client() {
    let origin = WaitingOrigin::start().await;
    origin.permits.send_replace(true);
    let gateway = gateway(&[origin.address], "", TRUSTED).await;
    let mut client = http2_client(&gateway, 65_535).await;
    // A proxy adds fields: a head above the limit is not the fault of its client.
    for _ in 0..300 {
        assert_eq!(send_many_fields(&mut client, "192.0.2.9").await, 431);
    }
    let mut statuses = Vec::new();
    for _ in 0..300 {
        statuses.push(status(send_for(&mut client, 9, "/open//a")).await);
    }
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert!((40..=100).contains(&refused), "{refused} of 300");
    let own = status(send_for(&mut client, 9, "/open")).await;
    assert!([200, 429].contains(&own), "{own}");
    let other = status(send_for(&mut client, 8, "/open")).await;
    assert_eq!(other, 200, "another client");
}

#[tokio::test]
async fn limited_head_of_a_trusted_proxy_counts_for_its_client() {
    let origin = WaitingOrigin::start().await;
    let limits = format!("{TRUSTED}\naddress = {{ requests = 5, per = \"1h\" }}");
    let gateway = gateway(&[origin.address], "", &limits).await;
    let mut client = http2_client(&gateway, 65_535).await;
    for last in [1, 2] {
        for count in 1..=6 {
            let found = status(send_for(&mut client, last, "/open//a")).await;
            let expected = if count > 5 { 429 } else { 400 };
            assert_eq!(found, expected, "{last} {count}");
        }
    }
}

#[tokio::test]
async fn resets_of_one_client_do_not_close_an_upstream_connection() {
    let origin = WaitingOrigin::start().await;
    let back = gateway(&[origin.address], "", "").await;
    let front = gateway(&[back.address], "http2 = true", "").await;
    let mut users = Vec::new();
    for last in 0..USERS {
        let mut client = http2_from(&front, 10 + last, 65_535).await;
        users.push(send(&mut client, head("GET", "/open", &[]), true).0);
    }
    let mut arrived = usize::from(USERS);
    origin.until_arrived(arrived).await;
    for _ in 0..8 {
        let mut client = http2_from(&front, 2, 65_535).await;
        let streams = (0..25).map(|_| send(&mut client, head("GET", "/open", &[]), true));
        let streams: Vec<_> = streams.collect();
        arrived += streams.len();
        origin.until_arrived(arrived).await;
        for (_answer, mut stream) in streams {
            stream.send_reset(h2::Reason::CANCEL);
        }
    }
    origin.permits.send_replace(true);
    assert_eq!(count_answered(users).await, usize::from(USERS));
    let none = "postern_http2_rapid_resets_total 0";
    back.assert_metric(none).await;
}

/// An HTTP/2 origin that reads no bodies of requests with `x-stuck`, and answers others at their end.
async fn selective_origin() -> SocketAddr {
    start_http2(|request, answer| async move {
        let (head, mut body) = request.into_parts();
        if head.headers.contains_key("x-stuck") {
            std::future::pending::<()>().await;
        }
        while let Some(Ok(part)) = body.data().await {
            let _given = body.flow_control().release_capacity(part.len());
        }
        answer_http2(answer, &[]);
    })
    .await
}

fn post(fields: &str, length: usize) -> String {
    format!(
        "POST /open HTTP/1.1\r\nHost: gate\r\n{fields}Content-Length: {length}\r\n\r\n{}",
        "x".repeat(length)
    )
}

#[tokio::test]
async fn unread_uploads_of_one_client_do_not_stop_others() {
    let settings = "http2 = true\nwrite_timeout = \"1s\"\nretries = 0";
    let gateway = gateway(&[selective_origin().await], settings, "").await;
    let mut stuck = Vec::new();
    for _ in 0..6 {
        stuck.push(begin_from(&gateway, 2, &post("X-Stuck: 1\r\n", 100_000)).await);
    }
    let mut calls = http2_from(&gateway, 2, 65_535).await;
    let fields = [("x-stuck", "1")];
    let (call, mut messages) = send(&mut calls, head("POST", "/open", &fields), false);
    let queued = messages.send_data(vec![b'x'; 100_000].into(), false);
    queued.expect("queued");
    tokio::time::sleep(Duration::from_millis(200)).await;
    for last in 0..USERS {
        let mut client = client_from(&gateway, 10 + last).await;
        let response = client.ask(&post("", 10)).await;
        assert_eq!(response.status, 200, "{last}: {}", response.body);
    }
    let began = Instant::now();
    for mut client in stuck {
        assert_eq!(client.answer().await.problem(), "504 upstream_timeout");
    }
    // A body of unknown length.
    assert_eq!(status(call).await, 504);
    assert!(began.elapsed() < Duration::from_secs(4), "{began:?}");
    // The origin gets its windows back.
    let mut client = client_from(&gateway, 2).await;
    assert_eq!(client.ask(&post("", 100_000)).await.status, 200);
    let failures =
        "postern_proxy_upstream_failures_total{cause=\"response_timeout\",upstream=\"origin\"} 7";
    gateway.assert_metric(failures).await;
}

#[tokio::test]
async fn unread_uploads_through_a_proxy_do_not_stop_others() {
    let origin = start(|mut connection| async move {
        while let Some(head) = connection.take_head().await {
            if head.contains("x-stuck") {
                std::future::pending::<()>().await;
            }
            connection.take_body(content_length(&head)).await;
            connection.send(OK).await;
        }
    })
    .await;
    let limits = format!("{TRUSTED}\nbody_bytes = \"33MiB\"");
    let gateway = gateway(&[origin], "", &limits).await;
    let mut client = http2_client(&gateway, 65_535).await;
    let mut upload = |fields: &[(&str, &str)], length: usize| {
        let digits = length.to_string();
        let length_field = [("content-length", digits.as_str())];
        let fields: Vec<_> = fields.iter().copied().chain(length_field).collect();
        let (answer, mut body) = send(&mut client, head("POST", "/open", &fields), false);
        let sent = body.send_data(vec![b'x'; length].into(), true);
        sent.expect("sends");
        (answer, body)
    };
    // More than the kernel and the gateway hold.
    let fields = [("x-forwarded-for", "192.0.2.1"), ("x-stuck", "1")];
    let stuck: Vec<_> = (0..5).map(|_| upload(&fields, 8 << 20)).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let users: Vec<_> = (0..USERS)
        .map(|last| {
            let address = format!("192.0.2.{}", 10 + last);
            upload(&[("x-forwarded-for", &address)], 10_000).0
        })
        .collect();
    assert_eq!(count_answered(users).await, usize::from(USERS));
    drop(stuck);
}
