use proptest::prelude::*;

use super::*;
use crate::dispatch::LowPriorityThrottle;
use crate::notification::{Lane, Priority, order_at};
use crate::store::Record;
use crate::testing::record_of;

const NOW: Timestamp = Timestamp(1_763_600_000_000);

fn at(seconds: i64) -> Timestamp {
    Timestamp(NOW.0 + seconds * 1000)
}

fn snapshot(history: Vec<HistoryEntry>) -> NotificationSnapshot {
    let new = record_of(order_at(NOW));
    let record = Record {
        lane: Lane::first(Channel::Email, Priority::Low),
        expires_at: Some(at(3600)),
        ..new.record
    };
    NotificationSnapshot {
        id: new.id,
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
    StatusView::of(&snapshot(history), at(seconds), |_| ChannelFlow::default())
}

/// Returns the entry of a waiting row whose attempt began and whose next attempt is due at these
/// seconds.
fn waiting(attempt: i32, since: Option<i64>, due: Option<i64>) -> HistoryEntry {
    HistoryEntry::Waiting(WaitingRow {
        attempt,
        since: since.map(at),
        due: due.map(at),
    })
}

#[test]
fn waiting_notification_has_reason_and_next_attempt() {
    // The attempt, when it began and is due, and whether the provider is unavailable until 12 s.
    let rows = [
        ((0, None, None, false), (Some("LOW_PAUSED"), None, 1)),
        ((1, Some(5), None, false), (None, None, 2)),
        (
            (0, None, None, true),
            (Some("PROVIDER_UNAVAILABLE"), Some(12), 1),
        ),
        ((1, None, Some(20), true), (Some("RETRY"), Some(20), 1)),
        ((1, Some(9), None, true), (None, None, 2)),
    ];
    for ((attempt, since, due, is_down), (reason, next, events)) in rows {
        let flow = |_| ChannelFlow {
            low_throttle: LowPriorityThrottle::Paused,
            next_probe_at: is_down.then_some(at(12)),
            ..ChannelFlow::default()
        };
        let history = vec![waiting(attempt, since, due)];
        let view = StatusView::of(&snapshot(history), at(10), flow);
        let about = format!("{attempt} {since:?} {due:?}");
        assert_eq!(view.status, NotificationStatus::Queued, "{about}");
        let found = (view.wait_reason, view.next_attempt_at);
        assert_eq!(found, (reason, next.map(at)), "{about}");
        assert_eq!(view.events.len(), events, "{about}");
    }
}

#[test]
fn imprecise_report_is_placed_after_its_attempt() {
    let mut snapshot = snapshot(Vec::new());
    snapshot.record.created_at = Timestamp(NOW.0 + 400);
    let HistoryEntry::Result(mut sent) = result(ResultKind::Sent, 1, 0) else {
        panic!("a result")
    };
    sent.began_at = Some(Timestamp(NOW.0 + 410));
    sent.at = Timestamp(NOW.0 + 600);
    let sent = HistoryEntry::Result(sent);
    for (seconds, last) in [(0, ["SENT", "DELIVERED"]), (-5, ["DELIVERED", "SENT"])] {
        let report = receipt(ReceiptKind::Delivered, seconds);
        for history in [[report.clone(), sent.clone()], [sent.clone(), report]] {
            snapshot.history = history.into();
            let view = StatusView::of(&snapshot, at(20), |_| ChannelFlow::default());
            let types: Vec<_> = view.events.iter().map(|event| event.r#type).collect();
            assert_eq!(types, [&["QUEUED", "ATTEMPTED"], &last[..]].concat());
            assert!(view.events.is_sorted_by_key(|event| event.at));
        }
    }
}

#[test]
fn notification_certain_to_expire_is_expired() {
    let status = |row| view(vec![row], 3600).status;
    assert_eq!(status(waiting(0, None, None)), NotificationStatus::Expired);
    let running = status(waiting(1, Some(3599), None));
    let may_succeed = "an attempt in progress may still succeed";
    assert_eq!(running, NotificationStatus::Queued, "{may_succeed}");
}

#[test]
fn only_a_bounce_overrides_delivered() {
    use ReceiptKind::{Bounced, Deferred, Delivered, Failed};
    let sent = || result(ResultKind::Sent, 1, 1);
    let rows: [(&[ReceiptKind], _); 5] = [
        (&[Delivered, Bounced], NotificationStatus::Failed),
        (&[Delivered, Deferred], NotificationStatus::Delivered),
        (&[Delivered, Failed], NotificationStatus::Delivered),
        (&[Deferred], NotificationStatus::Sent),
        (&[ReceiptKind::Sent], NotificationStatus::Sent),
    ];
    for (kinds, expected) in rows {
        let receipts = kinds.iter().map(|kind| receipt(*kind, 9));
        let history = std::iter::once(sent()).chain(receipts);
        assert_eq!(view(history.collect(), 20).status, expected, "{kinds:?}");
    }
    let bounced = view(vec![sent(), receipt(Delivered, 5), receipt(Bounced, 9)], 20);
    assert_eq!(bounced.reason.as_deref(), Some("BOUNCED"));
    // The report may arrive before the result is stored.
    let early = vec![waiting(1, Some(1), None), receipt(Delivered, 2)];
    assert_eq!(view(early, 3).status, NotificationStatus::Delivered);
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
