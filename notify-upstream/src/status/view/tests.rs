use proptest::prelude::*;

use super::*;
use crate::dispatch::LowPriorityThrottle;
use crate::notification::OrderSequence;
use crate::notification::{Lane, order_at};
use crate::store::Record;

const NOW: Timestamp = Timestamp(1_763_600_000_000);

fn at(seconds: i64) -> Timestamp {
    Timestamp(NOW.0 + seconds * 1000)
}

fn snapshot(history: Vec<HistoryEntry>) -> NotificationSnapshot {
    let record = Record {
        lane: Lane::first(Channel::Email, Priority::Low),
        creator: "service:a".to_owned(),
        addressee: None,
        template: "welcome".to_owned(),
        template_version: 3,
        locale: "en".to_owned(),
        recipient: String::new(),
        variables: String::new(),
        created_at: NOW,
        expires_at: Some(at(3600)),
        request_id: None,
        trace_context: None,
    };
    NotificationSnapshot {
        id: OrderSequence::id(order_at(NOW)),
        record,
        send_at: None,
        history,
    }
}

fn result(kind: ResultKind, attempt: i32, seconds: i64) -> HistoryEntry {
    HistoryEntry::Result(ResultRow {
        attempt,
        kind,
        began_at: Some(at(seconds)),
        at: at(seconds + 1),
        next_at: None,
        provider: Some("smtp".to_owned()),
        code: None,
        detail: None,
        address: None,
        template_version: Some(3 + attempt),
    })
}

fn receipt(kind: ReceiptKind, seconds: i64) -> HistoryEntry {
    HistoryEntry::Receipt(ReceiptEntry {
        kind,
        at: at(seconds),
        provider: "sns".to_owned(),
        code: None,
        detail: None,
    })
}

fn view(history: Vec<HistoryEntry>, seconds: i64) -> StatusView {
    StatusView::of(&snapshot(history), at(seconds), |_| ChannelFlow {
        low_throttle: LowPriorityThrottle::Paused,
        next_probe_at: None,
        ..ChannelFlow::default()
    })
}

fn view_of(waiting: WaitingRow) -> StatusView {
    view(vec![HistoryEntry::Waiting(waiting)], 10)
}

#[test]
fn waiting_low_notification_has_a_wait_reason() {
    let waiting = WaitingRow {
        attempt: 0,
        since: None,
        due: None,
    };
    let queued = view_of(waiting);
    assert_eq!(
        (queued.status, queued.wait_reason, queued.attempts),
        (NotificationStatus::Queued, Some("LOW_PAUSED"), 0)
    );
    let running = WaitingRow {
        attempt: 1,
        since: Some(at(5)),
        due: None,
    };
    let started = view_of(running);
    assert_eq!(
        (started.status, started.wait_reason, started.events.len()),
        (NotificationStatus::Queued, None, 2)
    );
}

#[test]
fn wait_for_provider_has_reason_and_next_attempt() {
    let flow = |_| ChannelFlow {
        low_throttle: LowPriorityThrottle::Paused,
        next_probe_at: Some(at(12)),
        ..ChannelFlow::default()
    };
    let view = |waiting| {
        StatusView::of(
            &snapshot(vec![HistoryEntry::Waiting(waiting)]),
            at(10),
            flow,
        )
    };
    let waiting = view(WaitingRow {
        attempt: 0,
        since: None,
        due: None,
    });
    assert_eq!(
        (waiting.wait_reason, waiting.next_attempt_at),
        (Some("PROVIDER_UNAVAILABLE"), Some(at(12)))
    );
    let repeated = view(WaitingRow {
        attempt: 1,
        since: None,
        due: Some(at(20)),
    });
    assert_eq!(
        (repeated.wait_reason, repeated.next_attempt_at),
        (Some("RETRY"), Some(at(20)))
    );
    let started = view(WaitingRow {
        attempt: 1,
        since: Some(at(9)),
        due: None,
    });
    assert_eq!((started.wait_reason, started.next_attempt_at), (None, None));
}

#[test]
fn imprecise_report_is_placed_after_its_attempt() {
    let mut snapshot = snapshot(Vec::new());
    snapshot.record.created_at = Timestamp(NOW.0 + 400);
    let HistoryEntry::Result(sent) = result(ResultKind::Sent, 1, 0) else {
        panic!("a result")
    };
    let sent = ResultRow {
        began_at: Some(Timestamp(NOW.0 + 410)),
        at: Timestamp(NOW.0 + 600),
        ..sent
    };
    for offset_ms in [0, -5000] {
        let delivered = Timestamp(NOW.0 + offset_ms);
        let report = HistoryEntry::Receipt(ReceiptEntry {
            kind: ReceiptKind::Delivered,
            at: delivered,
            provider: "sns".to_owned(),
            code: None,
            detail: None,
        });
        for history in [
            vec![report.clone(), HistoryEntry::Result(sent.clone())],
            vec![HistoryEntry::Result(sent.clone()), report],
        ] {
            let view = StatusView::of(
                &NotificationSnapshot {
                    history,
                    ..snapshot.clone()
                },
                at(20),
                |_| ChannelFlow::default(),
            );
            let types: Vec<_> = view.events.iter().map(|event| event.r#type).collect();
            let expected: &[&str] = if offset_ms == 0 {
                &["QUEUED", "ATTEMPTED", "SENT", "DELIVERED"]
            } else {
                &["QUEUED", "ATTEMPTED", "DELIVERED", "SENT"]
            };
            assert_eq!(types, expected, "{offset_ms}");
            assert!(view.events.is_sorted_by_key(|event| event.at));
        }
    }
}

#[test]
fn notification_certain_to_expire_is_expired() {
    let waiting = WaitingRow {
        attempt: 0,
        since: None,
        due: None,
    };
    assert_eq!(
        view(vec![HistoryEntry::Waiting(waiting)], 3600).status,
        NotificationStatus::Expired
    );
    let running = WaitingRow {
        attempt: 1,
        since: Some(at(3599)),
        due: None,
    };
    assert_eq!(
        view(vec![HistoryEntry::Waiting(running)], 3600).status,
        NotificationStatus::Queued,
        "an attempt in progress may still succeed"
    );
}

#[test]
fn only_a_bounce_overrides_delivered() {
    let sent = || result(ResultKind::Sent, 1, 1);
    let status = |receipts: &[ReceiptKind]| {
        let history = std::iter::once(sent())
            .chain(receipts.iter().map(|kind| receipt(*kind, 9)))
            .collect();
        view(history, 20).status
    };
    use ReceiptKind::{Bounced, Deferred, Delivered};
    assert_eq!(status(&[Delivered, Bounced]), NotificationStatus::Failed);
    assert_eq!(
        status(&[Delivered, Deferred]),
        NotificationStatus::Delivered
    );
    assert_eq!(
        status(&[Delivered, ReceiptKind::Failed]),
        NotificationStatus::Delivered
    );
    let bounced = view(vec![sent(), receipt(Delivered, 5), receipt(Bounced, 9)], 20);
    assert_eq!(bounced.reason.as_deref(), Some("BOUNCED"));
    assert_eq!(status(&[Deferred]), NotificationStatus::Sent);
    assert_eq!(status(&[ReceiptKind::Sent]), NotificationStatus::Sent);
}

#[test]
fn receipt_before_sent_is_stored_is_applied() {
    let running = HistoryEntry::Waiting(WaitingRow {
        attempt: 1,
        since: Some(at(1)),
        due: None,
    });
    assert_eq!(
        view(vec![running, receipt(ReceiptKind::Delivered, 2)], 3).status,
        NotificationStatus::Delivered
    );
}

proptest! {
    #[test]
    fn order_and_repetition_of_reports_do_not_matter(kinds in prop::collection::vec(1..=5_i16, 1..12), turn in any::<prop::sample::Index>()) {
        let receipts: Vec<_> = kinds.iter().filter_map(|kind| ReceiptKind::from_code(*kind)).collect();
        let status = |receipts: &[ReceiptKind]| {
            let mut history = vec![result(ResultKind::Sent, 1, 1)];
            history.extend(receipts.iter().map(|kind| receipt(*kind, 9)));
            view(history, 20).status
        };
        let expected = status(&receipts);
        let mut turned = receipts.clone();
        turned.rotate_left(turn.index(receipts.len()));
        turned.extend_from_within(..turn.index(receipts.len()));
        prop_assert_eq!(status(&turned), expected);
        turned.reverse();
        prop_assert_eq!(status(&turned), expected);
    }
}
