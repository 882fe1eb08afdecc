"""Forward and backward of one microbatch on one stage: F, and then B, or D and later W.

D computes the gradients of the stage's inputs only. On the way it notes what flows into the nodes at which paths to
parameters leave the paths to the inputs; W starts there, so that nothing of the input paths runs twice. The kernels and
their operands are those of a whole backward, so the numbers are its numbers, bit for bit.

Only public functions of torch are used. Where the parameters of a part are used more than once on one path (tied
weights), W runs that part of the backward as a whole: slower, and still the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

__all__ = ["ForwardPass"]

Grads = tuple[Tensor, ...]


class ForwardPass:
    """A forward that waits for its backward.

    Parameters
    ----------
    inputs
        What the stage read; those that require a gradient are leaves.
    outputs
        What it made.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._inputs = tuple(tensor for tensor in inputs if tensor.requires_grad)
        self._outputs = tuple(tensor for tensor in outputs if tensor.requires_grad)
        self._grads: Grads = ()
        self._parts: list[_Part] | None = None

    def full_backward(self, grads: Grads) -> Grads:
        """Run B: gradients of parameters are added to theirs, those of the inputs are returned.

        Parameters
        ----------
        grads
            One for each output that requires a gradient, of its shape.

        Returns
        -------
        tuple of Tensor
            One for each input that requires a gradient, of its shape; zeros where nothing depends on it.
        """
        if self._outputs:
            torch.autograd.backward(self._outputs, grads)
        return tuple(_or_zeros(tensor.grad, tensor) for tensor in self._inputs)

    def input_grad(self, grads: Grads) -> Grads:
        """Run D: return the gradients of the inputs, keep what W needs (see `full_backward`).

        A stage whose inputs need no gradient does nothing here; its W is the whole backward.
        """
        self._grads = grads
        if not self._inputs:
            return ()
        self._parts = _parts(self._outputs, self._inputs)
        sources = [node for part in self._parts for node in part.sources]
        captured: dict[Node, tuple[Tensor | None, ...]] = {}
        hooks = [node.register_prehook(partial(captured.__setitem__, node)) for node in sources]
        try:
            found = torch.autograd.grad(self._outputs, self._inputs, grads, retain_graph=True, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        for part in self._parts:
            part.captured = [(node, captured[node]) for node in part.sources if node in captured]
        return tuple(_or_zeros(grad, tensor) for grad, tensor in zip(found, self._inputs, strict=True))

    def weight_grad(self) -> None:
        """Run W: add the gradients of the parameters to theirs. D came before."""
        if self._parts is None:
            if self._outputs:
                torch.autograd.backward(self._outputs, self._grads)
            return
        # those that need the whole graph come first: the others free what they have used
        for part in sorted(self._parts, key=lambda part: part.independent):
            if not part.independent:
                torch.autograd.backward(self._outputs, self._grads, inputs=part.parameters, retain_graph=True)
                continue
            starts = [
                (GradientEdge(node, index), grad)
                for node, grads in part.captured
                for index, grad in enumerate(grads)
                if grad is not None
            ]
            starts += [(get_gradient_edge(self._outputs[index]), self._grads[index]) for index in part.roots]
            if not starts:
                continue
            edges, grads = zip(*starts, strict=True)
            # Hooks on a source have run in D; run again on what they made, they must not change it once more.
            hooks = [node.register_prehook(partial(_instead, captured)) for node, captured in part.captured]
            try:
                torch.autograd.backward(edges, grads, inputs=part.parameters)
            finally:
                for hook in hooks:
                    hook.remove()


class _Part:
    """Parameters, and where gradients enter the subgraph that leads to them alone.

    Attributes
    ----------
    parameters
        The leaves; in the order in which the graph walk found them.
    sources
        Nodes on a path to an input with a direct edge into the subgraph.
    roots
        Indices of outputs that lie in the subgraph.
    independent
        Whether no source is reached from another one; then W may start from all of them at once.
    captured
        What flowed into each source during D.
    """

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        self.sources: list[Node] = []
        self.roots: list[int] = []
        self.independent = True
        self.captured: list[tuple[Node, tuple[Tensor | None, ...]]] = []


def _parts(outputs: Grads, inputs: Grads) -> list[_Part]:
    """Divide the graph's parameters into parts that share no node beside the input paths."""
    roots = [get_gradient_edge(tensor).node for tensor in outputs]
    leaves = {get_gradient_edge(tensor).node for tensor in inputs}
    children, order = _walk(roots)
    on_path: set[Node] = set()
    for node in order:
        if node in leaves or any(child in on_path for child in children[node]):
            on_path.add(node)
    groups = _Groups()
    for node in order:
        for child in children[node]:
            if child not in on_path:
                groups.join(node, child)
    parts: dict[Node, _Part] = {}
    for node in reversed(order):  # roots first
        if node not in groups.parent:
            if node in on_path or node not in roots:
                continue
            groups.find(node)  # an output that is a parameter
        part = parts.setdefault(groups.find(node), _Part())
        if node in on_path:
            part.sources.append(node)
        elif not children[node] and (variable := getattr(node, "variable", None)) is not None:
            part.parameters.append(variable)
    for index, root in enumerate(roots):
        if root not in on_path and root in groups.parent:
            parts[groups.find(root)].roots.append(index)
    for part in parts.values():
        part.independent = len(part.sources) < 2 or not _reaches(part.sources, children, on_path)
    return [part for part in parts.values() if part.parameters]


def _walk(roots: Sequence[Node]) -> tuple[dict[Node, list[Node]], list[Node]]:
    """Return the children of every node, and all nodes, children before parents."""
    children: dict[Node, list[Node]] = {}
    order: list[Node] = []
    stack = [(node, False) for node in reversed(roots)]
    while stack:
        node, left = stack.pop()
        if left:
            order.append(node)
        elif node not in children:
            children[node] = [child for child, _ in node.next_functions if child is not None]
            stack.append((node, True))
            stack += [(child, False) for child in children[node] if child not in children]
    return children, order


def _reaches(sources: Sequence[Node], children: dict[Node, list[Node]], on_path: set[Node]) -> bool:
    """Return whether one of the sources lies below another on the input paths."""
    stack = [child for node in sources for child in children[node] if child in on_path]
    seen: set[Node] = set()
    wanted = set(sources)
    while stack:
        node = stack.pop()
        if node in wanted:
            return True
        if node not in seen:
            seen.add(node)
            stack += [child for child in children[node] if child in on_path]
    return False


class _Groups:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        """Return the node that stands for the set of `node`."""
        root = self.parent.setdefault(node, node)
        while root is not self.parent[root]:
            root = self.parent[root]
        while self.parent[node] is not root:
            self.parent[node], node = root, self.parent[node]
        return root

    def join(self, first: Node, second: Node) -> None:
        """Make the sets of two nodes one."""
        self.parent[self.find(first)] = self.find(second)


def _instead(captured: tuple[Tensor | None, ...], _: object) -> tuple[Tensor | None, ...]:
    """Return what flowed into a node in D, for what flows into it now."""
    return captured


def _or_zeros(grad: Tensor | None, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if grad is None else grad
