-- Mixed day: of a hundred requests, seventy read /auth/me, fifteen the user's own profile, eight send a notification to
-- the user, five read a path that does not exist, two sign in.
--   wrk -t1 -c64 -d60s -s bench/load/mixed-day.lua http://127.0.0.1:8500
dofile('bench/load/common.lua')
local people, tokens, ids, at = lines('people'), lines('access-tokens'), lines('ids'), 0

request = function()
  at = at + 1
  local who, what = at % #tokens + 1, (at * 37) % 100
  local token, id = tokens[who], ids[who]
  if what < 70 then return get('/auth/me', token) end
  if what < 85 then return get('/actors/' .. id, token) end
  if what < 93 then
    return post('/notifications', '{"channel":"email","recipient":{"actorId":"' .. id ..
      '"},"template":"welcome","variables":{"name":"Load"},"priority":"LOW"}', token)
  end
  if what < 98 then return get('/notifications/01900000-0000-7000-8000-000000000000', token) end
  local email, password = string.match(people[who], '^(%S+) (.+)$')
  return post('/auth/login', string.format('{"email":"%s","password":"%s"}', email, password))
end

response = function(status) count(status) end
