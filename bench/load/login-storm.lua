-- Login storm: all users sign in concurrently, one in twenty with a wrong password.
--   wrk -t1 -c32 -d30s -s bench/load/login-storm.lua http://127.0.0.1:8500
-- Each sign-in costs an argon2id hash; beyond the pool's capacity, requests are rejected with 429.
dofile('bench/load/common.lua')
local people, at = lines('people'), 0

request = function()
  at = at + 1
  local email, password = string.match(people[at % #people + 1], '^(%S+) (.+)$')
  if math.random(20) == 1 then password = 'Wrong horse battery 9' end
  return post('/auth/login', string.format('{"email":"%s","password":"%s"}', email, password))
end

response = function(status) count(status) end
