//! What only PostgreSQL has to be asked: where rows lie, and who waits for whom.

use super::*;

#[tokio::test]
async fn a_claim_leaves_every_row_in_its_page_and_adds_nothing_to_the_indexes() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.maintain(NOW, Timestamp(0)).await.expect("partitions");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    let pages = "SELECT array_agg((ctid::text::point)[0]::int8 ORDER BY ord) FROM notify_queue";
    let pages = async || {
        sqlx::query_scalar::<_, Vec<i64>>(pages)
            .fetch_one(pool)
            .await
            .expect("reads")
    };
    store.accept(&orders(0, 1_000)).await.expect("accepted");
    let before = pages().await;
    assert_eq!(claim(&store, 0, 1_000, ME, &[]).await.len(), 1_000);
    assert_eq!(pages().await, before);
}

#[tokio::test]
async fn what_waits_for_the_one_that_takes_a_row_over_changes_it_no_more() {
    let test = testing::postgres().await;
    let store = Store::open(&test.database, 4).await.expect("opens");
    store.maintain(NOW, Timestamp(0)).await.expect("partitions");
    let Database::Postgres(pool) = &test.database else {
        panic!("PostgreSQL")
    };
    store.accept(&orders(0, 1)).await.expect("accepted");
    let mine = claim(&store, 0, 1, ME, &[]).await.pop().expect("there");
    const WAIT: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut other = pool.begin().await.expect("begins");
    let takes = format!("UPDATE notify_queue SET worker = {OTHER}, fence = fence + 1");
    sqlx::query(sqlx::AssertSqlSafe(takes))
        .execute(&mut *other)
        .await
        .expect("takes it over");
    let result = ended(&mine, ME, ResultKind::Sent, Next::Done);
    let (finishing, releasing) = (store.clone(), store.clone());
    let finish = tokio::spawn(async move { finishing.finish(&[result]).await });
    let release = tokio::spawn(async move {
        releasing
            .release(&[ClaimRef {
                id: mine.id,
                fence: mine.fence,
            }])
            .await
    });
    while sqlx::query_scalar::<_, i64>(WAIT)
        .fetch_one(pool)
        .await
        .expect("asks")
        < 2
    {
        tokio::task::yield_now().await;
    }
    other.commit().await.expect("has it");
    assert_eq!(finish.await.expect("no panic").expect("answered"), 0);
    assert_eq!(release.await.expect("no panic").expect("answered"), []);
    let row = sqlx::query_as::<_, (i64, i32)>("SELECT worker, fence FROM notify_queue");
    assert_eq!(row.fetch_one(pool).await.expect("still there"), (OTHER, 2));
}
