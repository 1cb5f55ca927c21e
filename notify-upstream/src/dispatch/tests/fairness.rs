//! How long one caller waits for others, in rounds of calls: in each, as many are made as may be at once.

use super::*;
use crate::notification::order_at;
use crate::store::NewNotification;
use crate::testing::record_of;

/// Rows of `users` users, one user after the other.
fn rows_of(users: usize, each: usize, lane: Lane, due: Option<Timestamp>) -> Vec<NewNotification> {
    let row = |n: usize| {
        let mut row = record_of(order_at(START) + i64::try_from(n).expect("small"));
        row.record.creator = format!("user:{:03}", n / each);
        row.record.variables = r#"{"name":"Ada"}"#.to_owned();
        row.record.lane = lane;
        row.send_at = due;
        row
    };
    (0..users * each).map(row).collect()
}

#[tokio::test]
async fn service_does_not_wait_for_users() {
    let due = Some(after(1));
    for (users, each, due, priority) in [
        (1, 60, None, Priority::Normal),
        (8, 20, None, Priority::Normal),
        (8, 20, due, Priority::Normal),
        (8, 20, None, Priority::Low),
        // More than have a permit at once.
        (100, 2, None, Priority::Normal),
    ] {
        for (store, _database) in stores().await {
            let clock = clock();
            let mut rig = TestReplica::new(&store, &clock, 64).await;
            let rows = rows_of(users, each, Lane::first(Channel::Email, priority), due);
            ok(store.accept(&rows)).await;
            clock.advance(Duration::from_secs(2));
            rig.mover.step().await.expect("moved");
            let id = rig.accept(priority).await;
            rig.poll().await;
            let mut rounds = Vec::new();
            loop {
                let before = rig.script.calls().len();
                let claimed = rig.claim().await;
                rig.settle().await;
                if claimed == 0 {
                    break;
                }
                let calls = rig.script.calls().split_off(before);
                let place = |call: &NotificationId| rows.iter().position(|row| row.id == *call);
                rounds.push(calls.iter().filter_map(place).collect::<Vec<_>>());
                let is_called = calls.contains(&id) || rounds.len() > 1;
                assert!(is_called, "in the first round");
            }
            let case = format!("{users} {due:?} {priority:?}");
            assert_eq!(rounds.concat().len(), rows.len(), "{case}");
            for user in 0..users {
                let of_user = |round: &Vec<usize>| {
                    let places = round.iter().copied().filter(|place| place / each == user);
                    places.collect::<Vec<_>>()
                };
                let of_user: Vec<_> = rounds.iter().map(of_user).collect();
                let most = of_user.iter().map(Vec::len).max();
                assert!(most <= Some(4), "a sixteenth: {case}");
                assert!(of_user.concat().is_sorted(), "first in, first out: {case}");
                let turn = of_user[..users.div_ceil(50)].concat();
                assert!(!turn.is_empty(), "in turn: {case}");
            }
        }
    }
}

#[tokio::test]
async fn users_have_a_quarter_of_the_permits_beside_services() {
    for (mut rig, _database) in replicas(64).await {
        let lane = Lane::first(Channel::Email, Priority::Normal);
        let mut rows = rows_of(100, 1, lane, None);
        for (n, row) in rows.iter_mut().enumerate().filter(|(n, _)| n % 5 > 0) {
            row.record.creator = format!("service:{n}");
        }
        ok(rig.store.accept(&rows)).await;
        rig.step().await;
        let calls = rig.script.calls();
        let users = rows.iter().step_by(5).filter(|row| calls.contains(&row.id));
        assert_eq!((calls.len(), users.count()), (56, 16));
    }
}
