//! SQL of the sample actor service.

use postern_core::clock::Timestamp;
use postern_store::database::Sqlite;
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::caller::StoreError;

/// A registered actor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RegisteredActor {
    /// Subject of the user in the actor pool.
    pub(super) actor_id: String,
    pub(super) email: String,
    /// Profile as sent at registration.
    pub(super) profile: Map<String, Value>,
    pub(super) created_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct ActorStore(Sqlite);

// === impl ActorStore ===

impl ActorStore {
    pub(super) fn new(sqlite: Sqlite) -> Self {
        Self(sqlite)
    }

    /// Stores an actor. Returns the one that is registered with this id already.
    pub(super) async fn register(
        &self,
        actor: &RegisteredActor,
    ) -> Result<Option<RegisteredActor>, StoreError> {
        let inserted = sqlx::query(
            "INSERT INTO actor (actor_id, email, profile, created_at) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (actor_id) DO NOTHING",
        )
        .bind(&actor.actor_id)
        .bind(&actor.email)
        .bind(Value::Object(actor.profile.clone()).to_string())
        .bind(actor.created_at.0)
        .execute(&self.0.writer)
        .await?;
        if inserted.rows_affected() == 1 {
            return Ok(None);
        }
        self.get(&actor.actor_id).await
    }

    pub(super) async fn get(&self, actor_id: &str) -> Result<Option<RegisteredActor>, StoreError> {
        let row = sqlx::query(
            "SELECT actor_id, email, profile, created_at FROM actor WHERE actor_id = ?1",
        )
        .bind(actor_id)
        .fetch_optional(&self.0.readers)
        .await?;
        row.map(|row| read(&row)).transpose()
    }

    /// Returns the newest 200 actors.
    pub(super) async fn list(&self) -> Result<Vec<RegisteredActor>, StoreError> {
        let rows = sqlx::query(
            "SELECT actor_id, email, profile, created_at FROM actor ORDER BY created_at DESC LIMIT 200",
        )
        .fetch_all(&self.0.readers)
        .await?;
        rows.iter().map(read).collect()
    }

    pub(super) async fn set_feature(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO feature (feature_name, settings, updated_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (feature_name) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at",
        )
        .bind(name)
        .bind(Value::Object(settings.clone()).to_string())
        .bind(at.0)
        .execute(&self.0.writer)
        .await?;
        Ok(())
    }
}

fn read(row: &SqliteRow) -> Result<RegisteredActor, StoreError> {
    let profile: String = row.try_get("profile")?;
    Ok(RegisteredActor {
        actor_id: row.try_get("actor_id")?,
        email: row.try_get("email")?,
        profile: serde_json::from_str(&profile)
            .map_err(|error| sqlx::Error::Decode(error.into()))?,
        created_at: Timestamp(row.try_get("created_at")?),
    })
}
