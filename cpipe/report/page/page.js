"use strict";
(function () {
  // The page's data holds whole nanoseconds; everything here only draws them. No number is computed that a table shows.
  var DATA = JSON.parse(document.getElementById("data").textContent);
  var KINDS = DATA.kinds, CARRIES = DATA.carries;
  var AXIS = 26, RANK_GAP = 7, LANE_GAP = 2, LEVEL = 26, MIDDLE = 13, THIN = 10;
  var FONT = 'system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif';
  var root = document.documentElement;
  var state = { first: 0, last: 1, critical: false, memory: true, channels: true, stacked: false, selected: null };
  var horizon = 1;
  var panels = [];
  var pending = false;

  // --- what the data says -------------------------------------------------------------------------------------------

  function unpack(plan) {
    var ops = [], messages = [], i, k;
    plan.ranks.forEach(function (rank, place) {
      var clock = 0, row = rank.ops, previous = -1;
      rank.list = [];
      for (i = 0; i < row.kind.length; i++) {
        var start = clock + row.gap[i], end = start + row.length[i];
        clock = end;
        rank.list.push(ops.length);
        ops.push({ type: "op", at: ops.length, rank: place, kind: plan.letters[row.kind[i]], stage: row.stage[i], mb: row.mb[i], start: start, end: end,
          back: null, previous: previous, inputs: [], outputs: [] });
        previous = ops.length - 1;
      }
      Object.keys(row.back).forEach(function (key) { ops[rank.list[Number(key)]].back = row.back[key]; });
      rank.runs.forEach(function (run) { run.type = "run"; run.rank = place; });
    });
    plan.channels.forEach(function (channel, number) {
      channel.list = [];
      for (i = 0; i < channel.made.length; i++) {
        var times = channel.times ? channel.times.slice(3 * i, 3 * i + 3) : null;
        var made = ops[channel.made[i]], read = ops[channel.read[i]];
        var message = { type: "message", at: messages.length, channel: number, made: made.at, read: read.at, known: times !== null,
          start: times ? times[0] : made.end, held: times ? times[1] : made.end, end: times ? times[2] : Math.max(made.end, read.start) };
        channel.list.push(message.at);
        messages.push(message);
        read.inputs.push({ made: made.at, message: message.at });
        made.outputs.push({ read: read.at, message: message.at });
      }
    });
    for (k = 0; k < plan.local.length; k += 2) {
      ops[plan.local[k + 1]].inputs.push({ made: plan.local[k], message: -1 });
      ops[plan.local[k]].outputs.push({ read: plan.local[k + 1], message: -1 });
    }
    plan.ops = ops;
    plan.messages = messages;
    plan.criticalOps = new Set(plan.critical.op);
    plan.criticalMessages = new Set(plan.critical.message);
    plan.criticalRuns = new Set(plan.critical.collective);
    return plan;
  }

  function label(op) {
    return op.back ? op.stage + "F" + op.mb + "+" + op.back[0] + "B" + op.back[1] : op.stage + op.kind + op.mb;
  }

  function ms(time) {
    var digits = time !== 0 && Math.abs(time) < 1000 ? 6 : 3;
    return (time / 1e6).toFixed(digits) + " ms";
  }

  function size(bytes) {
    var units = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
    for (var i = 0; i < units.length; i++) if (bytes >= units[i][0]) return (bytes / units[i][0]).toFixed(2) + " " + units[i][1];
    return bytes + " B";
  }

  function waitsFor(plan, op) {
    var kind = plan.why[op.at], at = plan.whyAt[op.at];
    if (kind === "d") return label(plan.ops[at]) + ", the op before it";
    if (kind === "i") return label(plan.ops[at]) + ", on the same device";
    if (kind === "g") return "the all-gather of stage " + at;
    if (kind === "m") {
      var message = plan.messages[at], made = plan.ops[message.made];
      return "the " + plan.channels[message.channel].carries + " of " + label(made) + " from " + plan.ranks[made.rank].device;
    }
    return kind === "s" ? "nothing" : "what the plan does not say";
  }

  function waitedOp(plan, op) {
    var kind = plan.why[op.at], at = plan.whyAt[op.at];
    if (kind === "d" || kind === "i") return at;
    return kind === "m" ? plan.messages[at].made : -1;
  }

  function isCritical(plan, item) {
    if (item.type === "op") return plan.criticalOps.has(item.at);
    if (item.type === "run") return plan.criticalRuns.has(item.at);
    return plan.criticalMessages.has(item.at);
  }

  // What there is to say of a bar, as [name, text] pairs: for the box of details and, shorter, for the tip.
  function facts(plan, item) {
    var rows = [], channel, op;
    if (item.type === "message") {
      channel = plan.channels[item.channel];
      rows.push(["message", channel.carries + " of " + label(plan.ops[item.made])]);
      rows.push(["from", plan.ranks[channel.source].device], ["to", plan.ranks[channel.target].device]);
      if (channel.link) rows.push(["link", channel.link]);
      rows.push(["ready", ms(plan.ops[item.made].end)]);
      if (item.known) rows.push(["leaves", ms(item.start)], ["link free again", ms(item.held)], ["arrives", ms(item.end)]);
      rows.push(["read by", label(plan.ops[item.read]) + " at " + ms(plan.ops[item.read].start)]);
      return rows;
    }
    rows.push([item.type === "op" ? "op" : "collective", item.type === "op" ? label(item) : item.kind + item.stage]);
    rows.push(["kind", KINDS[item.kind].name], ["device", plan.ranks[item.rank].device], ["stage", String(item.stage)]);
    if (item.type === "op") rows.push(["microbatch", String(item.mb)]);
    rows.push(["start", ms(item.start)], ["end", ms(item.end)], ["duration", ms(item.end - item.start)]);
    if (item.type === "op") {
      op = item;
      rows.push(["waited for", waitsFor(plan, op)]);
      rows.push(["device idle before", ms(op.start - (op.previous >= 0 ? plan.ops[op.previous].end : 0))]);
      rows.push(["reads", op.inputs.map(function (input) { return label(plan.ops[input.made]); }).join(", ") || "nothing"]);
      rows.push(["feeds", op.outputs.map(function (output) { return label(plan.ops[output.read]); }).join(", ") || "nothing"]);
    }
    rows.push(["critical path", isCritical(plan, item) ? "yes" : "no"]);
    return rows;
  }

  // --- one panel: lanes and their canvas ----------------------------------------------------------------------------

  function Panel(element, plan) {
    this.plan = plan;
    this.box = element.querySelector(".chart");
    this.canvas = this.box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.spacer = document.createElement("div");
    this.box.appendChild(this.spacer);
    this.lanes = [];
    this.left = 90;
    this.drawn = 0;
  }

  Panel.prototype.arrange = function () {
    var plan = this.plan, lanes = [], y = AXIS + 4;
    var tall = plan.visible.length > 24 ? 15 : 24;
    plan.visible.forEach(function (place) {
      var rank = plan.ranks[place];
      lanes.push({ kind: "compute", rank: place, y: y, height: tall, name: rank.device });
      y += tall + LANE_GAP;
      if (rank.runs.some(function (run) { return run.end > run.start; })) {
        lanes.push({ kind: "runs", rank: place, y: y, height: MIDDLE, name: "data parallel" });
        y += MIDDLE + LANE_GAP;
      }
      if (state.channels) {
        rank.channels.forEach(function (number) {
          var channel = plan.channels[number];
          lanes.push({ kind: "channel", rank: place, y: y, height: THIN, channel: number, name: "to " + plan.ranks[channel.target].device + ", " + channel.carries });
          y += THIN + LANE_GAP;
        });
      }
      if (state.memory) {
        lanes.push({ kind: "memory", rank: place, y: y, height: LEVEL, name: rank.level.unit === "bytes" ? "memory" : "in flight" });
        y += LEVEL + LANE_GAP;
      }
      y += state.memory || state.channels ? RANK_GAP : LANE_GAP;
    });
    this.lanes = lanes;
    this.height = y + 4;
    this.rowOf = {};
    var rows = this.rowOf;
    lanes.forEach(function (lane) { if (lane.kind === "compute") rows[lane.rank] = lane; });
    var context = this.context, left = 40;
    lanes.forEach(function (lane) {
      context.font = (lane.kind === "compute" ? "12px " : "10px ") + FONT;
      left = Math.max(left, context.measureText(lane.name).width + 16);
    });
    this.left = Math.round(Math.min(left, 190, Math.max(60, this.box.clientWidth * 0.3)));
  };

  Panel.prototype.resize = function () {
    var width = this.box.clientWidth, ratio = window.devicePixelRatio || 1;
    var limit = Math.max(160, Math.round(window.innerHeight * 0.68) - 2);
    this.viewHeight = Math.min(this.height, limit);
    this.width = width;
    this.canvas.style.width = width + "px";
    this.canvas.style.height = this.viewHeight + "px";
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.viewHeight * ratio);
    this.ratio = ratio;
    this.spacer.style.height = Math.max(0, this.height - this.viewHeight) + "px";
  };

  Panel.prototype.x = function (time) {
    return this.left + (time - state.first) * (this.width - this.left - 8) / (state.last - state.first);
  };

  Panel.prototype.time = function (x) {
    return state.first + (x - this.left) * (state.last - state.first) / (this.width - this.left - 8);
  };

  Panel.prototype.draw = function (colours) {
    var context = this.context, self = this, top = this.box.scrollTop;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colours.back;
    context.fillRect(0, 0, this.width, this.viewHeight);
    this.drawn = 0;
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.viewHeight - AXIS);
    context.clip();
    var seen = this.lanes.filter(function (lane) { return lane.y + lane.height - top > AXIS && lane.y - top < self.viewHeight; });
    context.save();
    context.beginPath();
    context.rect(this.left, AXIS, this.width - this.left, this.viewHeight - AXIS);
    context.clip();
    seen.forEach(function (lane) {
      context.fillStyle = colours.lane;
      context.fillRect(self.left, lane.y - top, self.width - self.left, lane.height);
    });
    this.grid(colours);
    seen.forEach(function (lane) { self.lane(lane, lane.y - top, colours); });
    if (state.selected && state.selected.plan === this.plan.number) this.arrows(top, colours);
    context.restore();
    seen.forEach(function (lane) { self.name(lane, lane.y - top, colours); });
    context.restore();
    this.axis(colours);
    this.box.dataset.drawn = String(this.drawn);
  };

  Panel.prototype.name = function (lane, y, colours) {
    var context = this.context, big = lane.kind === "compute";
    context.font = (big ? "12px " : "10px ") + FONT;
    context.fillStyle = big ? colours.ink : colours.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(this.fitted(lane.name, this.left - 14), this.left - 8, y + lane.height / 2);
  };

  Panel.prototype.fitted = function (text, room) {
    var context = this.context, keep;
    if (context.measureText(text).width <= room) return text;
    for (keep = text.length - 1; keep > 2; keep--) {
      var short = text.slice(0, Math.ceil(keep / 2)) + "\u2026" + text.slice(text.length - Math.floor(keep / 2));
      if (context.measureText(short).width <= room) return short;
    }
    return text.slice(0, 2);
  };

  Panel.prototype.lane = function (lane, y, colours) {
    var plan = this.plan, rank = plan.ranks[lane.rank], self = this;
    if (lane.kind === "compute") rank.list.forEach(function (at) { self.bar(plan.ops[at], KINDS[plan.ops[at].kind], lane, y, colours); });
    else if (lane.kind === "runs") rank.runs.forEach(function (run) { self.bar(run, KINDS[run.kind], lane, y, colours); });
    else if (lane.kind === "channel") plan.channels[lane.channel].list.forEach(function (at) { self.message(plan.messages[at], lane, y, colours); });
    else this.level(rank.level, lane, y, colours);
  };

  function picked(plan, item) {
    return state.selected !== null && state.selected.plan === plan.number && state.selected.item === item;
  }

  Panel.prototype.bar = function (item, kind, lane, y, colours) {
    if (item.end < state.first || item.start > state.last) return;
    var context = this.context, x = this.x(item.start), width = this.x(item.end) - x, critical = isCritical(this.plan, item);
    this.drawn++;
    var gap = width > 4 ? 1 : 0;
    context.globalAlpha = state.critical && !critical ? 0.22 : 1;
    context.fillStyle = kind.fill;
    context.fillRect(x, y, Math.max(width - gap, 0.6), lane.height);
    if (state.critical && critical) {
      context.fillStyle = colours.ink;
      context.fillRect(x, y + lane.height - (lane.height > MIDDLE ? 3 : 2), Math.max(width - gap, 1), lane.height > MIDDLE ? 3 : 2);
    }
    if (lane.height >= MIDDLE && width > 9) this.text(item, kind, Math.max(x, this.left), Math.min(x + width, this.width), y + lane.height / 2, lane.height > MIDDLE ? 11 : 9);
    context.globalAlpha = 1;
    if (picked(this.plan, item)) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.strokeRect(x, y, Math.max(width - gap, 2), lane.height);
    }
  };

  Panel.prototype.text = function (item, kind, left, right, y, size) {
    var context = this.context, texts, i;
    texts = item.type === "run" ? [item.kind + item.stage] : item.back ? [label(item), "F" + item.mb + "B" + item.back[1], item.kind] : this.plan.several ? [label(item), item.kind + item.mb, item.kind] : [item.kind + item.mb, item.kind];
    context.font = size + "px " + FONT;
    context.fillStyle = kind.ink;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (i = 0; i < texts.length; i++) {
      if (texts[i].length * 6 > right - left) continue;
      if (context.measureText(texts[i]).width + 4 <= right - left) {
        context.fillText(texts[i], (left + right) / 2, y + 0.5);
        return;
      }
    }
  };

  Panel.prototype.message = function (item, lane, y, colours) {
    if (item.end < state.first || item.start > state.last) return;
    var context = this.context, kind = CARRIES[this.plan.channels[item.channel].carries];
    var x = this.x(item.start), held = this.x(item.held), end = this.x(item.end);
    var critical = isCritical(this.plan, item), chosen = picked(this.plan, item);
    this.drawn++;
    var alpha = state.critical && !critical ? 0.22 : 1;
    context.fillStyle = kind.fill;
    context.globalAlpha = 0.4 * alpha;
    context.fillRect(held, y + 2, Math.max(0, end - held), lane.height - 4);
    context.globalAlpha = alpha;
    context.fillRect(x, y, Math.max(1, held - x - (held - x > 3 ? 0.7 : 0)), lane.height);
    if (state.critical && critical) {
      context.fillStyle = colours.ink;
      context.fillRect(x, y + lane.height - 2, Math.max(1, end - x), 2);
    }
    context.globalAlpha = 1;
    if (chosen) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x, y, Math.max(2, end - x), lane.height);
    }
  };

  Panel.prototype.level = function (level, lane, y, colours) {
    var context = this.context, points = level.points, top = Math.max(level.capacity || 0, level.peak, 1) * 1.06;
    var self = this, bottom = y + lane.height;
    function height(value) { return bottom - value * lane.height / top; }
    context.beginPath();
    context.moveTo(this.x(0), bottom);
    for (var i = 0; i < points.length; i += 2) {
      var x = Math.max(-10, Math.min(self.width + 10, self.x(points[i])));
      if (i) context.lineTo(x, height(points[i - 1]));
      context.lineTo(x, height(points[i + 1]));
    }
    context.lineTo(Math.min(this.width + 10, this.x(this.plan.horizon)), height(points[points.length - 1]));
    context.lineTo(Math.min(this.width + 10, this.x(this.plan.horizon)), bottom);
    context.closePath();
    context.fillStyle = colours.level;
    context.fill();
    context.strokeStyle = colours.levelLine;
    context.lineWidth = 1;
    context.stroke();
    if (level.capacity) {
      context.strokeStyle = colours.alarm;
      context.setLineDash([5, 3]);
      context.beginPath();
      context.moveTo(this.left, height(level.capacity));
      context.lineTo(this.width, height(level.capacity));
      context.stroke();
      context.setLineDash([]);
    }
  };

  function tickStep(least) {
    for (var power = 1; ; power *= 10) for (var factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
  }

  Panel.prototype.ticks = function () {
    var step = tickStep((state.last - state.first) * 80 / Math.max(80, this.width - this.left)), found = [];
    for (var time = Math.ceil(state.first / step) * step; time <= state.last; time += step) found.push(time);
    return { step: step, times: found };
  };

  Panel.prototype.grid = function (colours) {
    var context = this.context, self = this;
    context.fillStyle = colours.line;
    this.ticks().times.forEach(function (time) { context.fillRect(Math.round(self.x(time)), AXIS, 1, self.viewHeight); });
    this.mark(this.plan.makespan, colours.ink);
    if (this.plan.bound !== null) this.mark(this.plan.bound, colours.alarm);
  };

  Panel.prototype.mark = function (time, colour) {
    var context = this.context, x = Math.round(this.x(time)) + 0.5;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(x, AXIS);
    context.lineTo(x, this.viewHeight);
    context.stroke();
    context.setLineDash([]);
  };

  Panel.prototype.axis = function (colours) {
    var context = this.context, self = this, found = this.ticks(), digits = 0;
    while (digits < 6 && Math.round(found.step / Math.pow(10, 6 - digits)) * Math.pow(10, 6 - digits) !== found.step) digits++;
    context.fillStyle = colours.back;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = colours.line;
    context.fillRect(0, AXIS - 1, this.width, 1);
    context.font = "11px " + FONT;
    context.fillStyle = colours.muted;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText("ms", this.left - 8, AXIS / 2);
    context.textAlign = "center";
    found.times.forEach(function (time) {
      var x = self.x(time), text = (time / 1e6).toFixed(digits), half = context.measureText(text).width / 2;
      if (x - half > self.left - 6 && x + half < self.width) context.fillText(text, x, AXIS / 2);
    });
  };

  Panel.prototype.arrows = function (top, colours) {
    var item = state.selected.item, plan = this.plan, self = this;
    if (item.type === "message") this.arrow(plan.ops[item.made], plan.ops[item.read], item, top, colours.ink);
    if (item.type !== "op") return;
    item.inputs.forEach(function (input) { self.arrow(plan.ops[input.made], item, plan.messages[input.message], top, colours.ink); });
    item.outputs.forEach(function (output) { self.arrow(item, plan.ops[output.read], plan.messages[output.message], top, colours.accent); });
  };

  Panel.prototype.arrow = function (made, read, message, top, colour) {
    var from = this.rowOf[made.rank], to = this.rowOf[read.rank];
    if (!from || !to) return;
    var context = this.context;
    var x0 = this.x(made.end), y0 = from.y + from.height / 2 - top, x1 = this.x(read.start), y1 = to.y + to.height / 2 - top;
    var bend = Math.max(18, Math.min(120, Math.abs(x1 - x0) / 2));
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.8;
    context.beginPath();
    context.moveTo(x0, y0);
    if (y0 === y1 && x1 - x0 > 30) context.bezierCurveTo(x0 + bend, y0 + from.height + 18, x1 - bend, y1 + from.height + 18, x1 - 5, y1); // below the bars between
    else context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 8, y1 - 4.5);
    context.lineTo(x1 - 8, y1 + 4.5);
    context.closePath();
    context.fill();
    context.beginPath();
    context.arc(x0, y0, 3, 0, 7);
    context.fill();
  };

  Panel.prototype.pick = function (x, y) {
    if (y < AXIS || x < this.left) return null;
    var plan = this.plan, time = this.time(x), near = 2 * (state.last - state.first) / this.width;
    var at = y + this.box.scrollTop, lane = this.lanes.find(function (one) { return at >= one.y && at < one.y + one.height + LANE_GAP; });
    if (!lane) return null;
    var rank = plan.ranks[lane.rank], found = null;
    var items = lane.kind === "compute" ? rank.list.map(function (i) { return plan.ops[i]; })
      : lane.kind === "runs" ? rank.runs
      : lane.kind === "channel" ? plan.channels[lane.channel].list.map(function (i) { return plan.messages[i]; }) : [];
    items.forEach(function (item) {
      if (item.start - near <= time && time <= item.end + near && (found === null || item.start <= time)) found = item;
    });
    return found || (lane.kind === "memory" ? { type: "level", rank: lane.rank, time: Math.max(0, time) } : null);
  };

  function levelAt(level, time) {
    var value = level.points[1];
    for (var i = 0; i < level.points.length && level.points[i] <= time; i += 2) value = level.points[i + 1];
    return value;
  }

  function tipText(plan, item) {
    if (item.type === "level") {
      var level = plan.ranks[item.rank].level, value = levelAt(level, item.time), bytes = level.unit === "bytes";
      var text = plan.ranks[item.rank].device + " at " + ms(item.time) + ": " + (bytes ? size(value) : value + " microbatches in flight");
      return text + "\npeak " + (bytes ? size(level.peak) : level.peak) + (level.capacity ? ", capacity " + size(level.capacity) : "");
    }
    return facts(plan, item).map(function (row) { return row[0] + ": " + row[1]; }).join("\n");
  }

  // --- state, drawing, input ----------------------------------------------------------------------------------------

  function palette() {
    var style = getComputedStyle(root), found = {};
    [["back", "--back"], ["ink", "--ink"], ["muted", "--muted"], ["line", "--line"], ["lane", "--lane"], ["accent", "--accent"], ["alarm", "--alarm"], ["level", "--level"], ["levelLine", "--level-line"]]
      .forEach(function (pair) { found[pair[0]] = style.getPropertyValue(pair[1]).trim(); });
    return found;
  }

  function drawAll() {
    pending = false;
    var colours = palette();
    panels.forEach(function (panel) { panel.draw(colours); });
    root.dataset.ready = "1";
  }

  function redraw() {
    if (pending) return;
    pending = true;
    window.requestAnimationFrame(drawAll);
  }

  function relayout() {
    document.getElementById("panels").classList.toggle("stacked", state.stacked);
    panels.forEach(function (panel) { panel.arrange(); panel.resize(); });
    redraw();
  }

  function look(first, last) {
    var least = Math.max(10, horizon / 1e6), span = Math.min(Math.max(last - first, least), horizon * 1.02);
    first = Math.max(-0.01 * horizon, Math.min(first, 1.01 * horizon - span));
    state.first = first;
    state.last = first + span;
    redraw();
    remember();
  }

  function zoom(factor, around) {
    var middle = around === undefined ? (state.first + state.last) / 2 : around;
    look(middle - (middle - state.first) * factor, middle + (state.last - middle) * factor);
  }

  function pan(share) {
    var move = share * (state.last - state.first);
    look(state.first + move, state.last + move);
  }

  function fit() { look(0, horizon); }

  function select(number, item, show) {
    state.selected = item === null ? null : { plan: number, item: item };
    var box = document.getElementById("details");
    box.textContent = "";
    box.classList.toggle("on", item !== null);
    if (item === null) {
      var hint = document.createElement("p");
      hint.className = "hint";
      hint.textContent = "Nothing is selected.";
      box.appendChild(hint);
    } else {
      var list = document.createElement("dl");
      facts(panels[number].plan, item).forEach(function (row) {
        var cell = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
        term.textContent = row[0];
        text.textContent = row[1];
        cell.appendChild(term);
        cell.appendChild(text);
        list.appendChild(cell);
      });
      box.appendChild(list);
    }
    if (item !== null && show) reveal(panels[number], item);
    redraw();
    remember();
  }

  function reveal(panel, item) {
    var span = state.last - state.first;
    if (item.start < state.first || item.end > state.last) look((item.start + item.end - span) / 2, (item.start + item.end + span) / 2);
    var row = panel.rowOf[item.rank];
    if (row && (row.y - panel.box.scrollTop < AXIS || row.y + row.height - panel.box.scrollTop > panel.viewHeight)) panel.box.scrollTop = row.y - panel.viewHeight / 2;
  }

  function press(id, on) { document.getElementById("do-" + id).setAttribute("aria-pressed", String(on)); }

  function set(name, on) {
    state[name] = on;
    press(name === "stacked" ? "stack" : name, on);
    relayout();
    remember();
  }

  function theme(name) {
    root.dataset.theme = name;
    document.getElementById("do-theme").textContent = name === "dark" ? "light" : "dark";
    redraw();
  }

  // The address after # is the view: it can be kept and sent, and tests use it.
  var settled = false;
  function remember() {
    if (!settled) return;
    var parts = [];
    if (state.first > 0 || state.last < horizon) parts.push("from=" + (state.first / 1e6).toFixed(6), "to=" + (state.last / 1e6).toFixed(6));
    if (state.critical) parts.push("critical");
    if (state.selected && state.selected.item.type === "op") parts.push("select=" + (state.selected.plan ? state.selected.plan + ":" : "") + label(state.selected.item));
    try {
      window.history.replaceState(null, "", parts.length ? "#" + parts.join("&") : window.location.pathname + window.location.search);
    } catch (refused) {
      settled = false; // some browsers allow no address of its own to a local file; the page works without
    }
  }

  function find(text) {
    var found = /^(?:(\d):)?(.*)$/.exec(text), number = Number(found[1] || 0), panel = panels[number];
    var op = panel ? panel.plan.ops.find(function (one) { return label(one) === found[2]; }) : undefined;
    return op ? { plan: number, item: op } : null;
  }

  function recall() {
    var wanted = {};
    window.location.hash.slice(1).split("&").forEach(function (part) {
      var cut = part.indexOf("="), name = cut < 0 ? part : part.slice(0, cut);
      if (name) wanted[name] = cut < 0 ? "1" : decodeURIComponent(part.slice(cut + 1));
    });
    if (wanted.theme) theme(wanted.theme === "dark" ? "dark" : "light");
    ["critical", "memory", "channels", "stacked"].forEach(function (name) { if (name in wanted) set(name, wanted[name] !== "0"); });
    var first = "from" in wanted ? Number(wanted.from) * 1e6 : state.first, last = "to" in wanted ? Number(wanted.to) * 1e6 : state.last;
    if (isFinite(first) && isFinite(last) && last > first) look(first, last);
    var chosen = wanted.select ? find(wanted.select) : null;
    if (chosen) select(chosen.plan, chosen.item, true);
  }

  function listen(panel, number) {
    var canvas = panel.canvas, tip = document.getElementById("tip"), from = null;
    function place(event) {
      var box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    }
    canvas.addEventListener("wheel", function (event) {
      var at = place(event);
      if (at.x < panel.left) return; // on the names it scrolls
      event.preventDefault();
      var unit = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) * unit / 800);
      else zoom(Math.exp(event.deltaY * unit / 500), panel.time(at.x));
    }, { passive: false });
    canvas.addEventListener("pointerdown", function (event) {
      if (event.button !== 0) return;
      from = { x: event.clientX, y: event.clientY, first: state.first, last: state.last, top: panel.box.scrollTop, moved: false };
      try {
        canvas.setPointerCapture(event.pointerId); // so that a drag may leave the chart
      } catch (gone) {
        from.moved = false; // the pointer is no longer there; a click all the same
      }
    });
    canvas.addEventListener("pointermove", function (event) {
      var at = place(event);
      if (from) {
        var dx = event.clientX - from.x, dy = event.clientY - from.y;
        if (Math.abs(dx) + Math.abs(dy) > 4) from.moved = true;
        if (from.moved) {
          var move = dx * (from.last - from.first) / (panel.width - panel.left);
          panel.box.classList.add("dragging");
          panel.box.scrollTop = from.top - dy;
          look(from.first - move, from.last - move);
        }
        tip.hidden = true;
        return;
      }
      var item = panel.pick(at.x, at.y);
      tip.hidden = item === null;
      if (item !== null) {
        tip.textContent = tipText(panel.plan, item);
        tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
        tip.style.top = (event.clientY + tip.offsetHeight + 24 > window.innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 10) : event.clientY + 16) + "px";
      }
    });
    canvas.addEventListener("pointerup", function (event) {
      panel.box.classList.remove("dragging");
      if (from && !from.moved) {
        var at = place(event), item = panel.pick(at.x, at.y);
        select(number, item !== null && item.type !== "level" ? item : null, false);
      }
      from = null;
    });
    canvas.addEventListener("pointercancel", function () { from = null; panel.box.classList.remove("dragging"); });
    canvas.addEventListener("pointerleave", function () { tip.hidden = true; });
    panel.box.addEventListener("scroll", redraw);
  }

  function step(by) {
    var chosen = state.selected;
    if (!chosen || chosen.item.type !== "op") return;
    var plan = panels[chosen.plan].plan, list = plan.ranks[chosen.item.rank].list, next = list[list.indexOf(chosen.item.at) + by];
    if (next !== undefined) select(chosen.plan, plan.ops[next], true);
  }

  function back() {
    var chosen = state.selected;
    if (!chosen || chosen.item.type !== "op") return;
    var plan = panels[chosen.plan].plan, at = waitedOp(plan, chosen.item);
    if (at >= 0) select(chosen.plan, plan.ops[at], true);
  }

  function climb(pixels) {
    panels.forEach(function (panel) { panel.box.scrollTop += pixels; });
  }

  var KEYS = {
    "+": function () { zoom(0.7); }, "=": function () { zoom(0.7); }, "-": function () { zoom(1 / 0.7); }, "0": fit,
    ArrowLeft: function () { pan(-0.15); }, ArrowRight: function () { pan(0.15); },
    ArrowUp: function () { climb(-60); }, ArrowDown: function () { climb(60); },
    c: function () { set("critical", !state.critical); }, m: function () { set("memory", !state.memory); },
    l: function () { set("channels", !state.channels); }, s: function () { set("stacked", !state.stacked); },
    t: function () { theme(root.dataset.theme === "dark" ? "light" : "dark"); },
    n: function () { step(1); }, p: function () { step(-1); }, w: back, Escape: function () { select(0, null, false); }
  };

  function start() {
    DATA.plans.forEach(function (plan, number) {
      plan.number = number;
      panels.push(new Panel(document.getElementById("plan-" + number), unpack(plan)));
      horizon = Math.max(horizon, plan.horizon);
    });
    var most = Math.max.apply(null, DATA.plans.map(function (plan) { return plan.visible.length; }));
    state.memory = state.channels = most <= 24;
    press("memory", state.memory);
    press("channels", state.channels);
    document.getElementById("do-stack").hidden = panels.length < 2;
    theme(window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    state.first = DATA.first === null ? 0 : DATA.first;
    state.last = DATA.last === null ? horizon : DATA.last;
    panels.forEach(listen);
    relayout();
    look(state.first, state.last);
    recall();
    drawAll(); // at once: the first sight of the page waits for no frame
    settled = true;
    var clicks = { critical: KEYS.c, memory: KEYS.m, channels: KEYS.l, stack: KEYS.s, theme: KEYS.t, "zoom-in": KEYS["+"], "zoom-out": KEYS["-"], fit: fit };
    Object.keys(clicks).forEach(function (id) { document.getElementById("do-" + id).addEventListener("click", clicks[id]); });
    document.addEventListener("keydown", function (event) {
      var act = KEYS[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key.indexOf("Arrow") === 0) event.preventDefault();
      act();
    });
    window.addEventListener("resize", relayout);
    window.addEventListener("hashchange", recall);
  }

  start();
})();
