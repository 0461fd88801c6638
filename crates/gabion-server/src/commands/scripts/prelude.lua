-- The world of a script. Run once in each state of Lua, with the functions that are written in Rust; gives the function
-- that runs a script. Nothing that a script can reach leads to a table that outlives it, so none can change the world of
-- the next: what it gets are views of the libraries, made for it alone.
local native = ...
local error, getmetatable, ipairs, loadstring, next, pairs = error, getmetatable, ipairs, loadstring, next, pairs
local pcall, rawget, rawset, select, setfenv, setmetatable = pcall, rawget, rawset, select, setfenv, setmetatable
local tonumber, tostring, type, unpack, xpcall = tonumber, tostring, type, unpack, xpcall
local string, table, math, coroutine = string, table, math, coroutine
local concat, sort, sub, rep, floor = table.concat, table.sort, string.sub, string.rep, math.floor
local create, resume = coroutine.create, coroutine.resume
local insert, remove, maxn = table.insert, table.remove, table.maxn

-- `over` is set when the script has to end; whatever catches errors raises this one on.
local state = native.state
-- What `getmetatable` finds at a view.
local LOCKED = {}
local READONLY = "Attempt to modify a readonly table"
-- What C does with more items than these, no hook interrupts for too long.
local ITEMS_MAX = 1000

-- Values that `unpack` gives at most. A function in Rust has a place for each text among its arguments, and there are
-- under 8,000; nothing but `unpack` makes so many.
local UNPACKED_MAX = 6000
-- A text of so many bytes is one that takes time.
local BYTES_MAX = 65536

local function give_up()
  error(state, 0)
end

-- Behind a protected call: an error that ends the script is raised again.
local function caught(ok, ...)
  if state.over then give_up() end
  if not ok then
    local err = native.value((...))
    if state.over then give_up() end
    if type(err) == "table" then
      local text = rawget(err, "err")
      if type(text) == "string" then err = text end
    end
    return false, err
  end
  return ok, ...
end

-- The same where the error was handled.
local function handled(ok, ...)
  if not ok then native.value((...)) end
  if state.over then give_up() end
  return ok, ...
end

-- The same function of a text, which asks the clock before it takes long.
local function paced(f)
  return function(text, ...)
    if type(text) == "string" and #text > BYTES_MAX then native.check() end
    return f(text, ...)
  end
end

local base = {
  _VERSION = _VERSION, assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs,
  rawequal = rawequal, rawget = rawget, select = select, tonumber = tonumber, tostring = tostring,
  type = type,
}

function base.unpack(list, first, last)
  local count = (tonumber(last) or #list) - (tonumber(first) or 1) + 1
  if count > UNPACKED_MAX then
    error("too many results to unpack: " .. count .. ", the limit is " .. UNPACKED_MAX, 2)
  end
  return unpack(list, first, last)
end

function base.pcall(...)
  return caught(pcall(...))
end

function base.xpcall(f, handler)
  return handled(xpcall(f, function(err)
    if state.over then return err end
    return handler(native.value(err))
  end))
end

function base.getmetatable(value)
  local found = getmetatable(value)
  if found ~= LOCKED then return found end
  return setmetatable({}, { __metatable = LOCKED, __newindex = function() error(READONLY, 2) end })
end

function base.setmetatable(value, meta)
  if getmetatable(value) == LOCKED then error(READONLY, 2) end
  return setmetatable(value, meta)
end

function base.rawset(value, key, new)
  if getmetatable(value) == LOCKED then error(READONLY, 2) end
  return rawset(value, key, new)
end

function base.collectgarbage(option)
  if option == "count" then return native.memory() / 1024 end
  return 0
end

-- The globals of the script that runs.
local current

function base.loadstring(text, name)
  local chunk, err = native.load(text, name or text)
  if chunk then return setfenv(chunk, current) end
  return nil, err
end

function base.load(reader, name)
  local parts = {}
  while true do
    local part = reader()
    if part == nil or part == "" then break end
    if type(part) ~= "string" then return nil, "reader function must return a string" end
    parts[#parts + 1] = part
  end
  return base.loadstring(concat(parts), name or "=(load)")
end

-- The library's own search goes as deep and takes as long as a pattern says.
local find, match, text_of = native.find, native.match, native.text_of
string.find, string.match = find, match
string.lower, string.upper, string.reverse = paced(string.lower), paced(string.upper), paced(string.reverse)
string.dump = nil

function string.gmatch(text, pattern)
  text, pattern = text_of(text, 1, "gmatch"), text_of(pattern, 2, "gmatch")
  local at = 1
  local function go_on(first, last, ...)
    if not first then at = #text + 2 return nil end
    at = last < first and last + 2 or last + 1
    if select("#", ...) == 0 then return sub(text, first, last) end
    return ...
  end
  return function()
    if at > #text + 1 then return nil end
    return go_on(native.find_from(text, pattern, at))
  end
end
string.gfind = string.gmatch

local function replacement(kind, with, whole, ...)
  local capture = whole
  if select("#", ...) > 0 then capture = (...) end
  local new
  if kind == "string" then return native.expand(with, whole, ...) end
  if kind == "table" then new = with[capture]
  elseif select("#", ...) > 0 then new = with(...)
  else new = with(whole) end
  if not new then return whole end
  if type(new) ~= "string" and type(new) ~= "number" then
    error("invalid replacement value (a " .. type(new) .. ")", 3)
  end
  return new
end

function string.gsub(text, pattern, with, count_max)
  text, pattern = text_of(text, 1, "gsub"), text_of(pattern, 2, "gsub")
  local kind = type(with)
  if kind == "number" then with, kind = tostring(with), "string" end
  if kind ~= "string" and kind ~= "table" and kind ~= "function" then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  count_max = tonumber(count_max) or #text + 1
  local is_anchored = sub(pattern, 1, 1) == "^"
  local parts, at, count = {}, 1, 0
  local function take(first, last, ...)
    if not first then return false end
    parts[#parts + 1] = sub(text, at, first - 1)
    parts[#parts + 1] = replacement(kind, with, sub(text, first, last), ...)
    count = count + 1
    if last < first then
      parts[#parts + 1] = sub(text, first, first)
      at = first + 1
    else
      at = last + 1
    end
    return true
  end
  while count < count_max and at <= #text + 1 do
    if not take(native.find_from(text, pattern, at)) or is_anchored then break end
  end
  parts[#parts + 1] = sub(text, at)
  return concat(parts), count
end

function string.rep(text, count)
  text, count = text_of(text, 1, "rep"), tonumber(count)
  if not count then error("bad argument #2 to 'rep' (number expected)", 2) end
  if text == "" or count < 1 then return "" end
  local len = #text * count
  if len > native.memory_max then error("resulting string too large", 2) end
  if len > BYTES_MAX then native.check() end
  return rep(text, count)
end

function table.sort(list, before)
  if type(list) == "table" and #list > ITEMS_MAX then
    -- One in C, as `rawequal`, would let no time pass.
    local given = before
    if type(given) == "function" then before = function(a, b) return (given(a, b)) end
    elseif not given then before = function(a, b) return a < b end end
  end
  return sort(list, before)
end

-- As in Lua 5.1, at any place; what moves many items does it here, where the clock is asked.
function table.insert(list, ...)
  local count, at, value = select("#", ...), ...
  if type(list) ~= "table" then
    error("bad argument #1 to 'insert' (table expected, got " .. type(list) .. ")", 2)
  end
  local last = #list + 1
  if count == 1 then
    rawset(list, last, at)
    return
  end
  if count ~= 2 then error("wrong number of arguments to 'insert'", 2) end
  at = tonumber(at)
  if not at then error("bad argument #2 to 'insert' (number expected)", 2) end
  at = floor(at)
  if at >= 1 and last - at <= ITEMS_MAX and at <= last then return insert(list, at, value) end
  for i = last, at + 1, -1 do rawset(list, i, rawget(list, i - 1)) end
  rawset(list, at, value)
end

function table.remove(list, at)
  if type(list) ~= "table" then
    error("bad argument #1 to 'remove' (table expected, got " .. type(list) .. ")", 2)
  end
  local last = #list
  if at == nil then at = last end
  at = tonumber(at)
  if not at then error("bad argument #2 to 'remove' (number expected)", 2) end
  at = floor(at)
  if at < 1 or at > last then return end
  if last - at <= ITEMS_MAX then return remove(list, at) end
  local value = rawget(list, at)
  for i = at, last - 1 do rawset(list, i, rawget(list, i + 1)) end
  rawset(list, last, nil)
  return value
end

function table.concat(list, ...)
  if type(list) == "table" and #list > ITEMS_MAX then native.check() end
  return concat(list, ...)
end

function table.maxn(list)
  native.check()
  return maxn(list)
end

-- They call a function in C without end where that is one in C. `pairs` and `ipairs` do all that they did.
table.foreach, table.foreachi, table.setn = nil, nil, nil

function coroutine.resume(...)
  return caught(resume(...))
end

-- Behind a resume: an error goes on as it is, with the place where it went on, as in Lua.
local function went_on(ok, ...)
  if ok and not state.over then return ... end
  if state.over then give_up() end
  local err = native.value((...))
  if state.over then give_up() end
  error(err, type((...)) == "string" and 3 or 0)
end

function coroutine.wrap(f)
  local thread = create(f)
  return function(...)
    return went_on(resume(thread, ...))
  end
end

math.random, math.randomseed = native.random, native.random_seed

local redis = native.redis
function redis.status_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  return { ok = text }
end
function redis.error_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return { err = "ERR wrong number or type of arguments" }
  end
  if sub(text, 1, 1) == "-" then text = sub(text, 2) end
  -- A word alone is no code, as in Redis.
  if not string.find(text, " ", 1, true) then text = "ERR " .. text end
  return { err = text }
end
function redis.replicate_commands() return true end
function redis.set_repl() end
function redis.breakpoint() return false end
function redis.debug() end

local function locked(index)
  return { __index = index, __metatable = LOCKED, __newindex = function() error(READONLY, 2) end }
end
local views = {
  bit = locked(native.bit), cjson = locked(native.cjson), coroutine = locked(coroutine),
  math = locked(math), os = locked({ clock = native.clock }), string = locked(string), table = locked(table),
}
local strings = getmetatable("")
strings.__metatable = LOCKED
strings.__index = string

setmetatable(base, { __index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end })
local above_base, above_redis = { __index = base }, { __index = redis }

local function on_error(err)
  if state.over then return err end
  err = native.value(err)
  if state.over then return err end
  if type(err) ~= "table" then err = { err = "ERR " .. tostring(err) } end
  local source, line = native.where()
  if source then
    rawset(err, "source", source)
    rawset(err, "line", line)
  end
  return err
end

return function(script, keys, argv, call, protected_call)
  local globals = setmetatable({ KEYS = keys, ARGV = argv }, above_base)
  for name, meta in pairs(views) do globals[name] = setmetatable({}, meta) end
  local api = setmetatable({ call = call, pcall = protected_call }, above_redis)
  globals.redis = setmetatable({}, locked(api))
  current = setmetatable({}, locked(globals))
  globals._G = current
  setfenv(script, current)
  return xpcall(script, on_error)
end
