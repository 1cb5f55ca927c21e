//! Rows of pools and app clients.

use postern_common::{Secret, from_row};

use super::PoolStore;
use crate::pool::model::{
    AppClient, ClientSettings, JsonColumn, PoolSettings, UserPool, to_json_text,
};

struct PoolRow {
    id: String,
    name: String,
    settings: JsonColumn<PoolSettings>,
    created_at: i64,
    updated_at: i64,
}

struct ClientRow {
    id: String,
    pool_id: String,
    name: String,
    secret: Option<String>,
    settings: JsonColumn<ClientSettings>,
    created_at: i64,
    updated_at: i64,
}

from_row!(PoolRow {
    id: String,
    name: String,
    settings: JsonColumn<PoolSettings> as String,
    created_at: i64,
    updated_at: i64,
});

from_row!(ClientRow {
    id: String,
    pool_id: String,
    name: String,
    secret: Option<String>,
    settings: JsonColumn<ClientSettings> as String,
    created_at: i64,
    updated_at: i64,
});

impl PoolStore {
    pub(crate) async fn pools(&self) -> Result<Vec<UserPool>, sqlx::Error> {
        const SQL: &str = "SELECT * FROM pool_pool ORDER BY created_at, id";
        let rows: Vec<PoolRow> = sqlx::query_as(SQL).fetch_all(&self.sqlite.readers).await?;
        Ok(rows.into_iter().map(UserPool::from).collect())
    }

    pub(crate) async fn clients(&self) -> Result<Vec<AppClient>, sqlx::Error> {
        const SQL: &str = "SELECT * FROM pool_client ORDER BY created_at, id";
        let rows: Vec<ClientRow> = sqlx::query_as(SQL).fetch_all(&self.sqlite.readers).await?;
        Ok(rows.into_iter().map(AppClient::from).collect())
    }

    /// Inserts the pool, or updates its name and settings.
    pub(crate) async fn put_pool(&self, pool: &UserPool) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_pool (id, name, settings, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO UPDATE SET
            name = excluded.name, settings = excluded.settings, updated_at = excluded.updated_at";
        let settings = to_json_text(&pool.settings);
        let query = sqlx::query(SQL)
            .bind(&pool.id)
            .bind(&pool.name)
            .bind(settings);
        query
            .bind(pool.created_at)
            .bind(pool.updated_at)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    pub(crate) async fn delete_pool(&self, id: &str) -> Result<(), sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_pool WHERE id = $1";
        sqlx::query(SQL)
            .bind(id)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Inserts the client, or updates its name and settings. The secret is never updated.
    pub(crate) async fn put_client(&self, client: &AppClient) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_client
                (id, pool_id, name, secret, settings, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET
            name = excluded.name, settings = excluded.settings, updated_at = excluded.updated_at";
        let settings = to_json_text(&client.settings);
        let query = sqlx::query(SQL)
            .bind(&client.id)
            .bind(&client.pool_id)
            .bind(&client.name);
        let query = query
            .bind(client.secret.as_ref().map(Secret::expose))
            .bind(settings);
        query
            .bind(client.created_at)
            .bind(client.updated_at)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }
}

impl From<PoolRow> for UserPool {
    fn from(row: PoolRow) -> Self {
        let PoolRow {
            id,
            name,
            settings,
            created_at,
            updated_at,
        } = row;
        Self {
            id,
            name,
            settings: settings.0,
            created_at,
            updated_at,
        }
    }
}

impl From<ClientRow> for AppClient {
    fn from(row: ClientRow) -> Self {
        let ClientRow {
            id,
            pool_id,
            name,
            secret,
            settings,
            created_at,
            updated_at,
        } = row;
        let secret = secret.map(Secret::new);
        Self {
            id,
            pool_id,
            name,
            secret,
            settings: settings.0,
            created_at,
            updated_at,
        }
    }
}
