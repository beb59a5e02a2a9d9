"""Notes as a graph of entities, relations and observations.

Invariants: the graph is one file in the working folder, written after each change. Entity names are unique.
"""

from __future__ import annotations

import json
from typing import Any

from typing_extensions import TypedDict

from .tool import ToolError
from .tool_server import ToolServer

FILE = "memory.json"
MAX_GRAPH = 10_000_000


class Entity(TypedDict):
    """An entity, with its known observations."""

    name: str
    entityType: str
    observations: list[str]


Relation = TypedDict("Relation", {"from": str, "to": str, "relationType": str})


class Observations(TypedDict):
    """Observations to add to an entity."""

    entityName: str
    contents: list[str]


class Deletion(TypedDict):
    """Observations to remove from an entity."""

    entityName: str
    observations: list[str]


class Graph(TypedDict):
    """The complete graph, as stored in the file."""

    entities: list[Entity]
    relations: list[Relation]


class Memory(ToolServer):
    """The graph, with the tools of the reference memory server."""

    def create_entities(self, entities: list[Entity]) -> list[Entity]:
        """Add entities; an existing name is left unchanged."""
        graph = self._load_graph()
        known_names = {entity["name"] for entity in graph["entities"]}
        new = [
            entity
            for entity in {entity["name"]: entity for entity in entities}.values()
            if entity["name"] not in known_names
        ]
        graph["entities"] += new
        self._save_graph(graph)
        return new

    def create_relations(self, relations: list[Relation]) -> list[Relation]:
        """Add relations between two entities."""
        graph = self._load_graph()
        new = [relation for relation in relations if relation not in graph["relations"]]
        graph["relations"] += new
        self._save_graph(graph)
        return new

    def add_observations(self, observations: list[Observations]) -> list[dict[str, Any]]:
        """Add observations to known entities."""
        graph = self._load_graph()
        added = []
        for observation in observations:
            entity = _find_entity(graph, observation["entityName"])
            new = [text for text in observation["contents"] if text not in entity["observations"]]
            entity["observations"] += new
            added.append({"entityName": entity["name"], "addedObservations": new})
        self._save_graph(graph)
        return added

    def delete_entities(self, entityNames: list[str]) -> str:
        """Remove entities, with their relations."""
        graph = self._load_graph()
        graph["entities"] = [entity for entity in graph["entities"] if entity["name"] not in entityNames]
        ends = [(relation, {relation["from"], relation["to"]}) for relation in graph["relations"]]
        graph["relations"] = [relation for relation, names in ends if not names & set(entityNames)]
        self._save_graph(graph)
        return "removed"

    def delete_observations(self, deletions: list[Deletion]) -> str:
        """Remove observations from known entities."""
        graph = self._load_graph()
        for deletion in deletions:
            entity = _find_entity(graph, deletion["entityName"])
            entity["observations"] = [text for text in entity["observations"] if text not in deletion["observations"]]
        self._save_graph(graph)
        return "removed"

    def delete_relations(self, relations: list[Relation]) -> str:
        """Remove relations between two entities."""
        graph = self._load_graph()
        graph["relations"] = [relation for relation in graph["relations"] if relation not in relations]
        self._save_graph(graph)
        return "removed"

    def read_graph(self) -> Graph:
        """All entities and relations of the graph."""
        return self._load_graph()

    def search_nodes(self, query: str) -> Graph:
        """Entities whose name, type or observations contain a text."""
        needle = query.lower()
        graph = self._load_graph()
        texts = [
            (entity["name"], " ".join([entity["name"], entity["entityType"], *entity["observations"]]).lower())
            for entity in graph["entities"]
        ]
        return _select_nodes(graph, {name for name, text in texts if needle in text})

    def open_nodes(self, names: list[str]) -> Graph:
        """Entities by their exact names."""
        return _select_nodes(self._load_graph(), set(names))

    def _load_graph(self) -> Graph:
        """Return the stored graph, or an empty one without a file. Raises ToolError if the file is damaged."""
        if FILE not in {entry.name for entry in self.folder.entries(".")}:
            return {"entities": [], "relations": []}
        try:
            graph: Graph = json.loads(self.folder.read_bytes(FILE, MAX_GRAPH))
        except ValueError as error:
            raise ToolError(f"{FILE} is damaged: {error}") from None
        return graph

    def _save_graph(self, graph: Graph) -> None:
        """Write the graph to its file. Raises ToolError if it would be too large."""
        data = json.dumps(graph, ensure_ascii=False).encode("utf-8", "replace")
        if len(data) > MAX_GRAPH:
            raise ToolError(f"the graph would have more than {MAX_GRAPH} bytes")
        self.folder.write(FILE, data)


tools = Memory.tools


def _find_entity(graph: Graph, name: str) -> Entity:
    """Return the entity with this name. Raises ToolError if there is none."""
    for entity in graph["entities"]:
        if entity["name"] == name:
            return entity
    raise ToolError(f"the memory has no entity {name}; create it first")


def _select_nodes(graph: Graph, names: set[str]) -> Graph:
    """Return the entities with these names, and the relations between two of them."""
    relations = [relation for relation in graph["relations"] if {relation["from"], relation["to"]} <= names]
    return {"entities": [entity for entity in graph["entities"] if entity["name"] in names], "relations": relations}
