//! The SQL of the sample actor service.

use postern_common::clock::Timestamp;
use postern_common::database::Sqlite;
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A person as the service knows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Actor {
    /// The subject in the actor pool.
    pub(super) actor_id: String,
    pub(super) email: String,
    /// Whatever registration sent.
    pub(super) profile: Map<String, Value>,
    pub(super) created_at: Timestamp,
}

/// What became of a registration.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is stored.
    Created,
    /// The id was there before; this is what stands there.
    Known(Actor),
}

#[derive(Debug)]
pub(super) struct Store(Sqlite);

// === impl Store ===

impl Store {
    pub(super) fn new(sqlite: Sqlite) -> Self {
        Self(sqlite)
    }

    pub(super) async fn register(&self, actor: &Actor) -> Result<Outcome, sqlx::Error> {
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
            return Ok(Outcome::Created);
        }
        self.get(&actor.actor_id)
            .await?
            .map(Outcome::Known)
            .ok_or(sqlx::Error::RowNotFound)
    }

    pub(super) async fn get(&self, actor_id: &str) -> Result<Option<Actor>, sqlx::Error> {
        let row = sqlx::query(
            "SELECT actor_id, email, profile, created_at FROM actor WHERE actor_id = ?1",
        )
        .bind(actor_id)
        .fetch_optional(&self.0.readers)
        .await?;
        row.map(|row| read(&row)).transpose()
    }

    pub(super) async fn set_feature(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO feature (feature_name, settings, updated_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (feature_name) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at",
        )
        .bind(name)
        .bind(Value::Object(settings.clone()).to_string())
        .bind(at.0)
        .execute(&self.0.writer)
        .await
        .map(drop)
    }
}

fn read(row: &SqliteRow) -> Result<Actor, sqlx::Error> {
    let profile: String = row.try_get("profile")?;
    Ok(Actor {
        actor_id: row.try_get("actor_id")?,
        email: row.try_get("email")?,
        profile: serde_json::from_str(&profile)
            .map_err(|error| sqlx::Error::Decode(error.into()))?,
        created_at: Timestamp(row.try_get("created_at")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;
    use serde_json::json;

    #[tokio::test]
    async fn a_registration_is_stored_once_and_found_after_a_restart() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("development.db");
        let open = async || Store::new(store::open(&path).await.expect("store"));
        let Value::Object(profile) = json!({"firstName": "Ada", "tags": [1, null]}) else {
            panic!("object")
        };
        let actor = Actor {
            actor_id: "s-1".into(),
            email: "ada@example.com".into(),
            profile,
            created_at: Timestamp(7),
        };
        assert!(matches!(
            open().await.register(&actor).await,
            Ok(Outcome::Created)
        ));
        let again = Actor {
            created_at: Timestamp(9),
            ..actor.clone()
        };
        let Ok(Outcome::Known(known)) = open().await.register(&again).await else {
            panic!("known")
        };
        assert_eq!(known, actor);
        assert_eq!(open().await.get("s-2").await.expect("read"), None);
    }
}
