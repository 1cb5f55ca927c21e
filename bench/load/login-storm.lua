-- Login storm: everybody signs in at once, one of twenty with a wrong password.
--   wrk -t1 -c32 -d30s -s bench/load/login-storm.lua http://127.0.0.1:8500
-- Passwords cost what argon2id costs, so that a storm is turned away with 429 beyond what the pool can hash.
dofile('bench/load/common.lua')
local people, at = lines('people'), 0

request = function()
  at = at + 1
  local email, password = string.match(people[at % #people + 1], '^(%S+) (.+)$')
  if math.random(20) == 1 then password = 'Wrong horse battery 9' end
  return post('/auth/login', string.format('{"email":"%s","password":"%s"}', email, password))
end

response = function(status) count(status) end
