INSERT INTO job (priority, payload) VALUES (2, '{"to":"ada@example.com","template":"welcome","variables":{"name":"Ada"}}');
