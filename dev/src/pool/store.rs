//! Persistence: all entities are held in memory, and written through as JSON to one table of SQLite.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use postern_core::clock::Timestamp;
use postern_store::database::Sqlite;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, Challenge, Session, User, UserPool};

pub(crate) struct PoolStore {
    pub(crate) pools: Table<UserPool>,
    pub(crate) clients: Table<AppClient>,
    pub(crate) users: Table<User>,
    pub(crate) sessions: Table<Session>,
    pub(crate) challenges: Table<Challenge>,
}

/// The entities of one kind, by id.
pub(crate) struct Table<T> {
    kind: &'static str,
    sqlite: Sqlite,
    entities: RwLock<BTreeMap<String, T>>,
    /// Held by the one change in progress.
    change: Mutex<()>,
}

// === impl PoolStore ===

impl PoolStore {
    /// Loads the store, without what has expired at `now`.
    pub(crate) async fn load(sqlite: &Sqlite, now: Timestamp) -> ApiResult<Self> {
        Ok(Self {
            pools: Table::load("pool", sqlite, |_| true).await?,
            clients: Table::load("client", sqlite, |_| true).await?,
            users: Table::load("user", sqlite, |_| true).await?,
            sessions: Table::load("session", sqlite, |it: &Session| it.expires_at > now.0).await?,
            challenges: Table::load("challenge", sqlite, |it: &Challenge| it.expires_at > now.0)
                .await?,
        })
    }
}

// === impl Table ===

impl<T: Clone + Serialize + DeserializeOwned> Table<T> {
    /// Loads the entities, and deletes those that `is_kept` rejects.
    async fn load(
        kind: &'static str,
        sqlite: &Sqlite,
        is_kept: impl Fn(&T) -> bool,
    ) -> ApiResult<Self> {
        const SELECT: &str = "SELECT id, value FROM pool_entity WHERE kind = $1";
        let table = Self {
            kind,
            sqlite: sqlite.clone(),
            entities: RwLock::default(),
            change: Mutex::default(),
        };
        let rows: Vec<(String, String)> = sqlx::query_as(SELECT)
            .bind(kind)
            .fetch_all(&sqlite.readers)
            .await?;
        for (id, value) in rows {
            let entity: T =
                serde_json::from_str(&value).map_err(|error| ApiError::internal(&error))?;
            if is_kept(&entity) {
                table.entities.write().insert(id, entity);
            } else {
                table.store(&id, None).await?;
            }
        }
        Ok(table)
    }

    pub(crate) fn get(&self, id: &str) -> Option<T> {
        self.entities.read().get(id).cloned()
    }

    /// Returns the first entity, by id, that matches.
    pub(crate) fn find(&self, matches: impl Fn(&T) -> bool) -> Option<T> {
        let entities = self.entities.read();
        entities.values().find(|entity| matches(entity)).cloned()
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.entities.read().values().cloned().collect()
    }

    /// Changes, creates or deletes an entity, unless `change` fails. Changes do not overlap.
    pub(crate) async fn update<R>(
        &self,
        id: &str,
        change: impl FnOnce(&mut Option<T>) -> ApiResult<R>,
    ) -> ApiResult<R> {
        let _changing = self.change.lock().await;
        let mut entity = self.get(id);
        let outcome = change(&mut entity)?;
        self.store(id, entity.as_ref()).await?;
        let mut entities = self.entities.write();
        match entity {
            Some(entity) => entities.insert(id.to_owned(), entity),
            None => entities.remove(id),
        };
        Ok(outcome)
    }

    pub(crate) async fn put(&self, id: &str, entity: T) -> ApiResult {
        self.update(id, |stored| {
            *stored = Some(entity);
            Ok(())
        })
        .await
    }

    pub(crate) async fn take(&self, id: &str) -> ApiResult<Option<T>> {
        self.update(id, |stored| Ok(stored.take())).await
    }

    async fn store(&self, id: &str, entity: Option<&T>) -> ApiResult {
        const PUT: &str = "INSERT INTO pool_entity (kind, id, value) VALUES ($1, $2, $3)
            ON CONFLICT (kind, id) DO UPDATE SET value = excluded.value";
        const DELETE: &str = "DELETE FROM pool_entity WHERE kind = $1 AND id = $2";
        let query = match entity {
            Some(entity) => {
                let value =
                    serde_json::to_string(entity).map_err(|error| ApiError::internal(&error))?;
                sqlx::query(PUT).bind(self.kind).bind(id).bind(value)
            }
            None => sqlx::query(DELETE).bind(self.kind).bind(id),
        };
        query.execute(&self.sqlite.writer).await?;
        Ok(())
    }
}
